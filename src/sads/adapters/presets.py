"""Networks that people use, by name: `sads.family("atlas:sd15")`, `sads geometry atlas:sd15`.

A preset is a configuration of a model of `diffusers` as it was published, the scheduler that it was
published with, and the shape of its data. Numbers are facts of the sources that each names; where
`diffusers` has a network's blocks but nobody's configuration of it, `like` says what is different.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sads.adapters.diffusers import family_of, model_class
from sads.adapters.schedulers import read_scheduler
from sads.errors import InvalidArgumentError, printable
from sads.families import ScoreFamily
from sads.schedule import Schedule

PREFIX = "atlas:"
UNET, TRANSFORMER = "U-Net", "transformer"


@dataclass(frozen=True)
class Preset:
    """A published network: what it is, and where that is written."""

    name: str
    title: str
    kind: str
    shape: tuple[int, ...]
    model: str  # its class in diffusers
    config: Mapping[str, Any]
    scheduler: Mapping[str, Any]
    source: str
    networks: int  # that the atlas draws
    options: Mapping[str, Any] = field(default_factory=dict)  # of the family
    like: str = ""  # in which way it is not quite the published network


DDPM = {"_class_name": "DDPMScheduler", "beta_start": 1e-4, "beta_end": 0.02}
DDPM |= {"beta_schedule": "linear", "prediction_type": "epsilon"}
LATENT = {"_class_name": "PNDMScheduler", "beta_start": 0.00085, "beta_end": 0.012}
LATENT |= {"beta_schedule": "scaled_linear", "prediction_type": "epsilon"}
COSINE = {"_class_name": "DDPMScheduler", "beta_schedule": "squaredcos_cap_v2"}
FLOW = {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}
EDM = {"_class_name": "EDMEulerScheduler", "sigma_min": 0.002, "sigma_max": 80.0}

HO = {  # what the U-Nets of Ho et al. (2020) share
    "attention_head_dim": None,
    "downsample_padding": 0,
    "flip_sin_to_cos": False,
    "freq_shift": 1,
    "norm_eps": 1e-6,
}
CIFAR10 = {
    **HO,
    "sample_size": 32,
    "block_out_channels": [128, 256, 256, 256],
    "down_block_types": ["DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"],
}
CELEBA = {
    **HO,
    "sample_size": 256,
    "block_out_channels": [128, 128, 256, 256, 512, 512],
    "down_block_types": [*["DownBlock2D"] * 4, "AttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "AttnUpBlock2D", *["UpBlock2D"] * 4],
}
ADM = {  # Dhariwal & Nichol (2021), ImageNet at 64 x 64
    "sample_size": 64,
    "layers_per_block": 3,
    "num_class_embeds": 1000,
    "block_out_channels": [192, 384, 576, 768],
    "attention_head_dim": 64,
    "down_block_types": ["ResnetDownsampleBlock2D", *["AttnDownBlock2D"] * 3],
    "up_block_types": [*["AttnUpBlock2D"] * 3, "ResnetUpsampleBlock2D"],
    "resnet_time_scale_shift": "scale_shift",
    "attn_norm_num_groups": 32,
    "upsample_type": "resnet",
    "downsample_type": "resnet",
}
SD15 = {
    "sample_size": 64,
    "attention_head_dim": 8,
    "block_out_channels": [320, 640, 1280, 1280],
    "cross_attention_dim": 768,
    "down_block_types": [*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"],
    "up_block_types": ["UpBlock2D", *["CrossAttnUpBlock2D"] * 3],
}
SDXL = {
    "sample_size": 128,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "attention_head_dim": [5, 10, 20],
    "block_out_channels": [320, 640, 1280],
    "cross_attention_dim": 2048,
    "down_block_types": ["DownBlock2D", *["CrossAttnDownBlock2D"] * 2],
    "up_block_types": [*["CrossAttnUpBlock2D"] * 2, "UpBlock2D"],
    "projection_class_embeddings_input_dim": 2816,
    "transformer_layers_per_block": [1, 2, 10],
    "use_linear_projection": True,
}
DIT = {
    "sample_size": 32,
    "num_layers": 28,
    "num_attention_heads": 16,
    "attention_head_dim": 72,
    "in_channels": 4,
    "out_channels": 8,
    "patch_size": 2,
    "num_embeds_ada_norm": 1000,
}
PIXART = {
    "sample_size": 64,
    "num_layers": 28,
    "num_attention_heads": 16,
    "attention_head_dim": 72,
    "cross_attention_dim": 1152,
    "caption_channels": 4096,
    "in_channels": 4,
    "out_channels": 8,
    "patch_size": 2,
}
SD3 = {
    "sample_size": 128,
    "num_layers": 24,
    "num_attention_heads": 24,
    "attention_head_dim": 64,
    "caption_projection_dim": 1536,
    "in_channels": 16,
    "out_channels": 16,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 2048,
    "patch_size": 2,
    "pos_embed_max_size": 192,
}
FLUX = {
    "num_layers": 19,
    "num_single_layers": 38,
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "axes_dims_rope": [16, 56, 56],
    "guidance_embeds": True,
    "in_channels": 64,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "patch_size": 1,
}
HUB = "huggingface.co"
CONVERSION = "diffusers, scripts/convert_consistency_to_diffusers.py (ImageNet 64)"
PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            name="sd15",
            title="Stable Diffusion 1.5",
            kind=UNET,
            shape=(4, 64, 64),
            model="UNet2DConditionModel",
            config=SD15,
            scheduler=LATENT,
            source=f"{HUB}/runwayml/stable-diffusion-v1-5, unet/config.json",
            networks=64,
        ),
        Preset(
            name="dit-xl-2",
            title="DiT-XL/2",
            kind=TRANSFORMER,
            shape=(4, 32, 32),
            model="DiTTransformer2DModel",
            config=DIT,
            scheduler=DDPM,
            source=f"{HUB}/facebook/DiT-XL-2-256, transformer/config.json",
            networks=64,
            options={"drop_variance": True},
            like="diffusers draws the modulation of its blocks by PyTorch's default, where its "
            "authors start at zero",
        ),
        Preset(
            name="sdxl",
            title="SDXL",
            kind=UNET,
            shape=(4, 64, 64),
            model="UNet2DConditionModel",
            config=SDXL,
            scheduler=LATENT,
            source=f"{HUB}/stabilityai/stable-diffusion-xl-base-1.0, unet/config.json",
            networks=16,
            like="at half the side of its usual latents",
        ),
        Preset(
            name="ddpm-cifar10-32",
            title="DDPM, CIFAR-10",
            kind=UNET,
            shape=(3, 32, 32),
            model="UNet2DModel",
            config=CIFAR10,
            scheduler=DDPM,
            source=f"{HUB}/google/ddpm-cifar10-32, config.json",
            networks=256,
        ),
        Preset(
            name="adm-64",
            title="ADM, ImageNet 64",
            kind=UNET,
            shape=(3, 64, 64),
            model="UNet2DModel",
            config=ADM,
            scheduler=COSINE,
            source=CONVERSION,
            networks=32,
            like="the first half of its output, without the learned variance",
        ),
        Preset(
            name="edm-64",
            title="EDM, ImageNet 64",
            kind=UNET,
            shape=(3, 64, 64),
            model="UNet2DModel",
            config=ADM,
            scheduler=EDM,
            source=f"{CONVERSION}; Karras et al. (2022), Table 1",
            networks=32,
            like="ADM's network with EDM's preconditioning; labels without dropout",
        ),
        Preset(
            name="pixart",
            title="PixArt-alpha",
            kind=TRANSFORMER,
            shape=(4, 64, 64),
            model="PixArtTransformer2DModel",
            config=PIXART,
            scheduler=DDPM,
            source=f"{HUB}/PixArt-alpha/PixArt-XL-2-512x512, transformer/config.json",
            networks=16,
            options={"drop_variance": True},
        ),
        Preset(
            name="sd3",
            title="Stable Diffusion 3",
            kind=TRANSFORMER,
            shape=(16, 32, 32),
            model="SD3Transformer2DModel",
            config=SD3,
            scheduler=FLOW,
            source=f"{HUB}/stabilityai/stable-diffusion-3-medium-diffusers, "
            "transformer/config.json",
            networks=16,
            like="at a quarter of the side of its usual latents",
        ),
        Preset(
            name="flux",
            title="FLUX.1",
            kind=TRANSFORMER,
            shape=(16, 32, 32),
            model="FluxTransformer2DModel",
            config=FLUX,
            scheduler=FLOW,
            source=f"{HUB}/black-forest-labs/FLUX.1-dev, transformer/config.json",
            networks=16,
            options={"text_length": 64},
            like="at a quarter of the side of its usual latents, with texts of 64 tokens",
        ),
        Preset(
            name="ddpm-256",
            title="DDPM, CelebA-HQ",
            kind=UNET,
            shape=(3, 256, 256),
            model="UNet2DModel",
            config=CELEBA,
            scheduler=DDPM,
            source=f"{HUB}/google/ddpm-celebahq-256, config.json",
            networks=16,
        ),
    )
}


def preset(name: str) -> Preset:
    """A preset by its name, with or without the prefix `atlas:`."""
    known = name.removeprefix(PREFIX)
    if known not in PRESETS:
        reason = (
            "; diffusers' UVit2DModel predicts tokens, not scores" if "vit" in known.lower() else ""
        )
        raise InvalidArgumentError(
            f"the atlas has no network {printable(known)!r}; it has {', '.join(PRESETS)}{reason}"
        )
    return PRESETS[known]


def adapt(
    name: str,
    shape: tuple[int, ...] | None,
    prediction: str | None,
    schedule: Schedule | None,
    overrides: Mapping[str, Any],
) -> ScoreFamily:
    """The family of `"atlas:NAME"`; its options are those of the model and of `diffusers:`."""
    chosen = preset(name)
    return family_of(
        model_class(chosen.model, chosen.name),
        chosen.config,
        read_scheduler(chosen.scheduler, f"the scheduler of {chosen.name}"),
        chosen.name,
        chosen.shape if shape is None else shape,
        prediction,
        schedule,
        {**chosen.options, **overrides},
    )
