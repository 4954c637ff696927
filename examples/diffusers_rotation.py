"""The rotation in a plain `diffusers` training loop: four lines, marked with `# sads`.

python examples/diffusers_rotation.py [epochs]
"""

import sys

import torch
from diffusers import DDPMScheduler, UNet2DModel
from torch.utils.data import DataLoader

import sads


class Network(torch.nn.Module):
    """The U-Net as `sads` calls it: `net(x, t)` returns a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.unet = UNet2DModel(
            sample_size=8, in_channels=1, out_channels=1, layers_per_block=1,
            block_out_channels=(32, 64), norm_num_groups=8,
            down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2,
        )  # fmt: skip

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.unet(x, t).sample


torch.manual_seed(0)
images = sads.load_images("digits")  # (1797, 1, 8, 8) in [-1, 1]
family = sads.family(Network, shape=(1, 8, 8))  # sads
rotation = sads.rotation(sads.estimate_geometry(family, num_networks=128), images, "min")  # sads
collate = sads.rotate_collate(rotation)  # sads
loader = DataLoader(images, 64, shuffle=True, drop_last=True, collate_fn=collate)

unet = Network().unet
scheduler = DDPMScheduler(clip_sample=False)  # rotated pixels are not in [-1, 1]
optimiser = torch.optim.AdamW(unet.parameters(), lr=1e-3)
for epoch in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
    for x in loader:
        noise, t = torch.randn_like(x), torch.randint(0, 1000, (len(x),))
        loss = (unet(scheduler.add_noise(x, noise, t), t).sample - noise).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.4f}")

x = torch.randn(64, 1, 8, 8)
scheduler.set_timesteps(50)
for t in scheduler.timesteps:
    with torch.no_grad():
        x = scheduler.step(unet(x, t).sample, t, x).prev_sample
samples = rotation.undo(x)  # sads
result = sads.classify(samples, images, sads.load_labels("digits"))
print(f"without a digit: {result.without_digit:.1%} ± {result.without_digit.error:.1%}")
