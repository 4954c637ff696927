"""The networks against independent implementations of them."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sads
from sads.errors import InvalidArgumentError, NotEnoughMemoryError
from sads.networks import DiT, UNet


@pytest.mark.parametrize(("shape", "count"), [((1, 16, 16), 381_121)])
def test_unet_has_the_parameters_of_table_1(shape: tuple[int, ...], count: int) -> None:
    network = sads.family("iddpm", shape).build()
    assert sum(p.numel() for p in network.parameters()) == count


def _copy(target: nn.Module, source: nn.Module) -> None:
    target.load_state_dict(source.state_dict())


def _copy_resnet(target: nn.Module, source: nn.Module) -> None:
    names = {"norm1": "norm1", "conv1": "conv1", "time_emb_proj": "time", "norm2": "norm2"}
    for theirs, ours in {**names, "conv2": "conv2"}.items():
        _copy(getattr(target, theirs), getattr(source, ours))
    if target.conv_shortcut is not None:
        _copy(target.conv_shortcut, source.skip)  # type: ignore[arg-type]


@pytest.mark.parametrize(("mults", "depth"), [((1, 1), 1), ((1, 2), 2)])
def test_unet_agrees_with_diffusers(mults: tuple[int, ...], depth: int) -> None:
    """The same weights in `diffusers.UNet2DModel`, which shares no code with ours."""
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    ours = UNet((1, 16, 16), channel_mults=mults, depth=depth).eval()
    levels = len(mults) + 1
    widths = (32, *(32 * m for m in mults))
    theirs = diffusers.UNet2DModel(
        sample_size=16,
        in_channels=1,
        out_channels=1,
        block_out_channels=widths,
        layers_per_block=depth,
        down_block_types=("DownBlock2D",) * levels,
        up_block_types=("UpBlock2D",) * levels,
        norm_num_groups=32,
        norm_eps=1e-5,
        attention_head_dim=widths[-1] // 4,
        downsample_padding=1,
        flip_sin_to_cos=True,
        freq_shift=0,
    ).eval()
    _copy(theirs.time_embedding.linear_1, ours.time[0])
    _copy(theirs.time_embedding.linear_2, ours.time[2])
    _copy(theirs.conv_in, ours.input)
    down = iter(ours.down)
    for block in theirs.down_blocks:
        for resnet in block.resnets:
            _copy_resnet(resnet, next(down))
        if block.downsamplers:
            _copy(block.downsamplers[0].conv, next(down).conv)  # type: ignore[arg-type]
    _copy_resnet(theirs.mid_block.resnets[0], ours.middle[0])
    _copy_resnet(theirs.mid_block.resnets[1], ours.middle[2])
    _copy_attention(theirs.mid_block.attentions[0], ours.middle[1])
    up = iter(ours.up)
    for block in theirs.up_blocks:
        for resnet in block.resnets:
            _copy_resnet(resnet, next(up))
        if block.upsamplers:
            _copy(block.upsamplers[0].conv, next(up).conv)  # type: ignore[arg-type]
    _copy(theirs.conv_norm_out, ours.output[0])
    _copy(theirs.conv_out, ours.output[1])

    x, t = torch.randn(3, 1, 16, 16), torch.tensor([0.0, 400.0, 999.0])
    with torch.no_grad():
        assert torch.allclose(ours(x, t), theirs(x, t).sample, atol=2e-5)


def _copy_attention(target: nn.Module, source: nn.Module) -> None:
    """Ours holds queries, keys and values head by head in one convolution."""
    channels = source.proj.in_channels
    weight = source.qkv.weight[..., 0].reshape(source.num_heads, 3, -1, channels)
    bias = source.qkv.bias.reshape(source.num_heads, 3, -1)
    for i, linear in enumerate((target.to_q, target.to_k, target.to_v)):
        linear.weight.data = weight[:, i].reshape(channels, channels)
        linear.bias.data = bias[:, i].reshape(channels)
    target.to_out[0].weight.data = source.proj.weight[..., 0]
    target.to_out[0].bias.data = source.proj.bias
    _copy(target.group_norm, source.norm)


def test_area_resampling_averages_and_doubles() -> None:
    torch.manual_seed(0)
    network = UNet((1, 8, 8), channel_mults=(1,), resample="area")
    down, up = network.down[1], network.up[2]
    x = torch.randn(1, 32, 8, 8)
    convolved = F.conv2d(x, down.conv.weight, down.conv.bias, padding=1)
    averaged = convolved.reshape(1, 32, 4, 2, 4, 2).mean(dim=(3, 5))
    assert torch.allclose(down(x), averaged, atol=1e-6)
    doubled = x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    assert torch.allclose(up(x), F.conv2d(doubled, up.conv.weight, up.conv.bias, padding=1))


def _literal_dit(net: DiT, x: Tensor, t: float) -> Tensor:
    """DiT on one image, token by token, straight from the description in the paper's appendix."""
    w = dict(net.named_parameters())
    p, (channels, height, width) = net.patch_size, x.shape
    frequencies = [math.exp(-math.log(10_000) * k / 128) for k in range(128)]
    angles = torch.tensor([t * f for f in frequencies])
    c = F.linear(torch.cat([angles.cos(), angles.sin()]), w["time.0.weight"], w["time.0.bias"])
    c = F.silu(F.linear(F.silu(c), w["time.2.weight"], w["time.2.bias"]))

    def norm(z: Tensor) -> Tensor:
        return (z - z.mean()) / torch.sqrt(z.var(correction=0) + 1e-6)

    tokens = []
    for i in range(height // p):
        for j in range(width // p):
            patch = x[:, i * p : (i + 1) * p, j * p : (j + 1) * p]
            token = (w["patches.weight"] * patch).sum(dim=(1, 2, 3)) + w["patches.bias"]
            quarter = len(token) // 4
            omega = [10_000 ** (-k / quarter) for k in range(quarter)]
            place = [
                *(math.sin(j * o) for o in omega),
                *(math.cos(j * o) for o in omega),
                *(math.sin(i * o) for o in omega),
                *(math.cos(i * o) for o in omega),
            ]
            tokens.append(token + torch.tensor(place))
    for b in range(len(net.blocks)):
        m = F.linear(c, w[f"blocks.{b}.modulation.linear.weight"])
        m = (m + w[f"blocks.{b}.modulation.linear.bias"]).reshape(6, -1)
        inputs = [norm(z) * (1 + m[1]) + m[0] for z in tokens]
        qkv = [
            F.linear(z, w[f"blocks.{b}.attention.qkv.weight"], w[f"blocks.{b}.attention.qkv.bias"])
            for z in inputs
        ]
        heads = net.blocks[b].attention.num_heads
        size = len(tokens[0]) // heads
        q, k, v = (torch.stack(qkv).reshape(len(tokens), 3, heads, size)[:, s] for s in range(3))
        mixed = []
        for i in range(len(tokens)):
            parts = []
            for h in range(heads):
                weights = torch.softmax(k[:, h] @ q[i, h] / math.sqrt(size), dim=0)
                parts.append(weights @ v[:, h])
            mixed.append(torch.cat(parts))
        proj = f"blocks.{b}.attention.proj"
        tokens = [
            z + m[2] * F.linear(a, w[f"{proj}.weight"], w[f"{proj}.bias"])
            for z, a in zip(tokens, mixed, strict=True)
        ]
        mlp = f"blocks.{b}.mlp"
        for i, z in enumerate(tokens):
            h = F.linear(norm(z) * (1 + m[4]) + m[3], w[f"{mlp}.0.weight"], w[f"{mlp}.0.bias"])
            h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
            tokens[i] = z + m[5] * F.linear(h, w[f"{mlp}.2.weight"], w[f"{mlp}.2.bias"])
    m = F.linear(c, w["modulation.linear.weight"], w["modulation.linear.bias"]).reshape(2, -1)
    image = torch.zeros_like(x)
    for index, z in enumerate(tokens):
        patch = F.linear(norm(z) * (1 + m[1]) + m[0], w["output.weight"], w["output.bias"])
        i, j = divmod(index, width // p)
        for a in range(p):
            for b in range(p):
                for channel in range(channels):
                    image[channel, i * p + a, j * p + b] = patch[(a * p + b) * channels + channel]
    return image


def test_dit_agrees_with_a_literal_version() -> None:
    torch.manual_seed(0)
    net = DiT((2, 6, 4), patch_size=2, hidden_size=16, depth=2, num_heads=4)
    for parameter in net.parameters():  # nothing may stay zero, or it would not be tested
        nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, 6, 4)
    with torch.no_grad():
        given = net(x[None], torch.tensor([321.0]))[0]
        assert torch.allclose(given, _literal_dit(net, x, 321.0), atol=1e-4)


def test_dit_initialisation_is_that_of_the_design() -> None:
    torch.manual_seed(0)
    net = DiT()
    for name, parameter in net.named_parameters():
        if "modulation" in name or name.endswith("bias"):
            assert not parameter.any(), name
        elif name.startswith("time"):
            assert math.isclose(parameter.detach().std(), 0.02, rel_tol=0.05), name
        else:
            fan_out, fan_in = len(parameter), parameter[0].numel()
            bound = math.sqrt(6 / (fan_in + fan_out))
            assert 0.9 * bound < parameter.abs().max() <= bound, name


@pytest.mark.parametrize("name", ["iddpm", "dit", "mlp", "cnn"])
@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 8, 8), (2, 16)])
def test_every_network_keeps_the_shape(name: str, shape: tuple[int, ...]) -> None:
    network = sads.family(name, shape).build()
    with torch.no_grad():
        assert network(torch.randn(2, *shape), torch.tensor([0.0, 9.0])).shape == (2, *shape)


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("mlp", (1,), {"time_width": 1}),
        ("mlp", (1, 2, 2, 2, 2), {"time_width": 0, "depth": 0}),
        ("mlp", (1, 3, 5), {"time_width": 3, "width": 1}),
        ("cnn", (1, 1), {"channels": 1}),
        ("cnn", (2, 3, 1, 2), {"channels": 3, "depth": 1}),
        ("iddpm", (1, 1, 3), {"channel_mults": ()}),
        ("iddpm", (1, 2, 4), {"channel_mults": (1,), "depth": 0}),
        ("iddpm", (1, 2, 2), {"channels": 64, "channel_mults": (2,)}),
        ("dit", (1, 1, 1), {"patch_size": 1, "hidden_size": 4, "num_heads": 1, "depth": 0}),
        ("dit", (1, 3, 6), {"patch_size": 3, "hidden_size": 8, "num_heads": 2, "depth": 1}),
    ],
)
def test_the_smallest_networks_return_what_they_are_given(
    name: str, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    network = sads.family(name, shape, **options).build()
    x, t = torch.randn(2, *shape), torch.tensor([0.0, 9.0])
    with torch.no_grad():
        both, first = network(x, t), network(x[:1], t[:1])
    assert both.shape == x.shape
    assert both.isfinite().all()
    assert torch.allclose(both[:1], first, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape", "options", "words"),
    [
        ("iddpm", (1, 15, 15), {}, "divide by 4"),
        ("iddpm", (1, 8, 8, 8), {}, "spatial axes"),
        ("iddpm", (1, 16, 16), {"channels": 48}, "GroupNorm"),
        ("iddpm", (1, 16, 16), {"resample": "cubic"}, "'nearest' and 'area'"),
        ("iddpm", (1, 16, 16), {"depht": 2}, "no option depht"),
        ("iddpm", (1, 16, 16), {"depth": "two"}, "depth must be a whole number"),
        ("iddpm", (1, 16, 16), {"depth": -2}, "at least 0, got -2"),
        ("iddpm", (1, 16, 16), {"channels": 0}, "channels must be a whole number of at least 1"),
        ("iddpm", (1, 16, 16), {"channel_mults": (1, 0)}, "each of channel_mults must be"),
        ("iddpm", (1, 16, 16), {"channel_mults": 2}, r"whole numbers such as \[1\]"),
        ("iddpm", (1, 4, 4), {}, "one position of 32 channels, one for each group"),
        ("iddpm", (1, 1, 1), {"channel_mults": ()}, "one position of 32 channels"),
        ("iddpm", (1, 2, 2), {"channel_mults": (2,)}, "one position of 32 channels"),
        ("iddpm", (1, 8, 8), {"channel_mults": (2,), "depth": 0, "num_heads": 64}, "width 32, got"),
        ("dit", (1, 16, 16), {"patch_size": 3}, "patch_size must divide"),
        ("dit", (1, 16, 16), {"mlp_ratio": 1e-3}, "leaves no unit in the hidden layers"),
        ("dit", (1, 16, 16), {"hidden_size": 50}, "hidden_size must divide"),
        ("dit", (1, 16, 16), {"num_heads": 0}, "num_heads must be a whole number of at least 1"),
        ("dit", (1, 16, 16), {"mlp_ratio": -1}, "mlp_ratio must be a finite number above 0"),
        ("cnn", (1, 16, 16), {"kernel_size": 4}, "odd kernel_size"),
        ("cnn", (1, 16, 16), {"channels": 0}, "channels must be a whole number of at least 1"),
        ("mlp", (1, 16, 16), {"width": 0}, "width must be a whole number of at least 1"),
        ("mlp", (1, 16, 16), {"width": 2.0}, "width must be a whole number of at least 1"),
        ("mlp", (1, 16, 16), {"depth": -1}, "depth must be a whole number of at least 0"),
        ("vit", (1, 16, 16), {}, "unknown family 'vit'"),
        ("mlp", (0, 16), {}, "positive whole numbers"),
    ],
)
def test_impossible_families_are_refused(
    name: str, shape: tuple[int, ...], options: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        sads.family(name, shape, **options)  # type: ignore[arg-type]


def test_positions_that_cannot_be_held_are_refused() -> None:
    """They have numbers on every device, also where the network has none."""
    with pytest.raises(NotEnoughMemoryError, match="positions of 64 tokens of width 1,000,000,000"):
        sads.family("dit", hidden_size=10**9)
