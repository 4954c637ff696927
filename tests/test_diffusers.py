"""Models of diffusers as networks: against diffusers itself, and every bad input in one line."""

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sads
from commands import Sads
from sads.adapters import configurations, schedulers
from sads.adapters.diffusers import _usual_meaning, pack, unpack
from sads.adapters.schedulers import read_scheduler
from sads.errors import InvalidArgumentError, NetworkError, SadsError

diffusers = pytest.importorskip("diffusers")

SMALL = {"block_out_channels": [16, 32], "layers_per_block": 1, "norm_num_groups": 8}
TOKENS = {"num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 8, "sample_size": 8}
TEXT = {"joint_attention_dim": 12, "pooled_projection_dim": 10}
UNET = {
    "_class_name": "UNet2DModel",
    "sample_size": 8,
    **SMALL,
    "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
    "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
}
CROSS = {
    "_class_name": "UNet2DConditionModel",
    "sample_size": 8,
    **SMALL,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "cross_attention_dim": 12,
    "attention_head_dim": 4,
}
DIT = {
    "_class_name": "Transformer2DModel",  # as the hub has it
    "norm_type": "ada_norm_zero",
    **TOKENS,
    "in_channels": 4,
    "out_channels": 8,
    "num_embeds_ada_norm": 10,
    "patch_size": 2,
}
SD3 = {
    "_class_name": "SD3Transformer2DModel",
    **TOKENS,
    **TEXT,
    "caption_projection_dim": 16,
    "pos_embed_max_size": 8,
}
FLUX = {
    "_class_name": "FluxTransformer2DModel",
    **{k: v for k, v in TOKENS.items() if k != "sample_size"},
    **TEXT,
    "num_single_layers": 1,
    "axes_dims_rope": [2, 2, 4],
}
FLOW = {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}
LATENT = {
    "_class_name": "PNDMScheduler",
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "beta_end": 0.012,
}


def folder(place: Path, config: Any, scheduler: Any = None, name: str = "unet") -> str:
    """A model as the hub stores it; what a family is called."""
    (place / name).mkdir(parents=True, exist_ok=True)
    text = config if isinstance(config, str) else json.dumps(config)
    (place / name / "config.json").write_text(text)
    if scheduler is not None:
        (place / "scheduler").mkdir(exist_ok=True)
        (place / "scheduler" / "scheduler_config.json").write_text(json.dumps(scheduler))
    return f"diffusers:{place / name}"


def test_a_network_is_the_model_called_as_its_pipeline_does(tmp_path: Path) -> None:
    x, t = torch.randn(2, 4, 8, 8), torch.tensor([3.0, 700.0])
    network = sads.family(folder(tmp_path, CROSS), condition="normal").build()
    text = network._values["encoder_hidden_states"]
    assert tuple(text.shape) == (1, 77, 12)
    assert float(text.std()) == pytest.approx(1, abs=0.1)
    expected = network.model(x, t, text.expand(2, -1, -1)).sample
    assert torch.equal(network(x, t), expected)


def test_stable_diffusion_xl_gets_its_pooled_text_and_sizes(tmp_path: Path) -> None:
    added = {"addition_embed_type": "text_time", "addition_time_embed_dim": 4}
    config = {**CROSS, **added, "projection_class_embeddings_input_dim": 34}
    network = sads.family(folder(tmp_path, config)).build()
    x, t = torch.randn(1, 4, 8, 8), torch.tensor([3.0])
    given = {"text_embeds": torch.zeros(1, 10), "time_ids": torch.zeros(1, 6)}
    expected = network.model(x, t, torch.zeros(1, 77, 12), added_cond_kwargs=given).sample
    assert torch.equal(network(x, t), expected)


def test_flux_sees_packed_images_at_a_thousandth_of_the_time(tmp_path: Path) -> None:
    family = sads.family(folder(tmp_path, FLUX, FLOW), shape=(16, 4, 6))
    network = family.build()
    x, t = torch.randn(1, 16, 4, 6), torch.tensor([500.0])
    patches = torch.nn.functional.unfold(x, 2, stride=2)  # (1, 16 * 4, 6): channels, then pixels
    tokens = patches.transpose(1, 2)
    ids = torch.tensor([[0.0, row, column] for row in range(2) for column in range(3)])
    ours, places = pack(x, 2)
    assert torch.equal(ours, tokens)
    assert torch.equal(places, ids)
    assert torch.equal(unpack(ours, 2, (4, 6)), x)
    output = network.model(
        tokens,
        encoder_hidden_states=torch.zeros(1, 512, 12),
        pooled_projections=torch.zeros(1, 10),
        timestep=t / 1000,
        img_ids=ids,
        txt_ids=torch.zeros(512, 3),
    ).sample
    assert torch.allclose(network(x, t), unpack(output, 2, (4, 6)), atol=1e-6)


def test_guidance_is_what_pipelines_compute(tmp_path: Path) -> None:
    family = sads.family(folder(tmp_path, CROSS), condition="normal", guidance_scale=7.5)
    network = family.build()
    x, t = torch.randn(3, 4, 8, 8), torch.tensor([3.0, 700.0, 5.0])
    text = network._values["encoder_hidden_states"].expand(3, -1, -1)
    given, without = (network.model(x, t, c).sample for c in (text, torch.zeros_like(text)))
    assert torch.allclose(network(x, t), without + 7.5 * (given - without), atol=1e-4)
    assert sads.estimate_geometry(family, 16).estimator == "integrated"
    with pytest.raises(InvalidArgumentError, match="the two are the same"):
        sads.family(folder(tmp_path, CROSS), guidance_scale=2.0)


def test_a_class_without_a_label_is_the_one_beyond_the_others(tmp_path: Path) -> None:
    family = sads.family(folder(tmp_path, DIT), drop_variance=True, guidance_scale=4.0)
    network = family.build()
    assert network._nothing["class_labels"].tolist() == [10]
    assert network(torch.randn(2, 4, 8, 8), torch.zeros(2)).shape == (2, 4, 8, 8)


@pytest.mark.parametrize(
    ("scheduler", "prediction", "schedule"),
    [
        (None, "epsilon", sads.Schedule()),
        (LATENT, "epsilon", sads.Schedule("scaled-linear")),
        (FLOW, "flow", sads.Schedule("flow", shift=3.0)),
        (
            {"_class_name": "DDIMScheduler", "prediction_type": "v_prediction", "beta_end": 0.01},
            "v",
            sads.Schedule("linear", first=1e-4, last=0.01),
        ),
        ({"_class_name": "EDMEulerScheduler", "sigma_data": 1.0}, "edm", None),
    ],
)
def test_the_scheduler_says_what_is_predicted(
    tmp_path: Path, scheduler: Any, prediction: str, schedule: sads.Schedule | None
) -> None:
    family = sads.family(folder(tmp_path, CROSS, scheduler))
    assert family.prediction == prediction
    assert family.schedule == (schedule or sads.Schedule("edm", sigma_data=1.0))
    assert (
        sads.family(folder(tmp_path, CROSS), prediction="x0", schedule="cosine").prediction == "x0"
    )


@pytest.mark.parametrize(
    ("scheduler", "note"),
    [
        ({"_class_name": "EDMEulerScheduler", "sigma_schedule": "exponential"}, "spaces its"),
        ({"beta_schedule": ["linear"]}, "the schedule is linear"),
        ({"rescale_betas_zero_snr": True}, "ends at noise alone"),
    ],
)
def test_levels_that_are_not_known_are_said(tmp_path: Path, scheduler: Any, note: str) -> None:
    assert any(note in said for said in sads.family(folder(tmp_path, UNET, scheduler)).notes)


def test_levels_are_those_of_the_scheduler_itself(tmp_path: Path) -> None:
    ours = sads.family(folder(tmp_path, CROSS, LATENT)).schedule
    theirs = diffusers.PNDMScheduler.from_config(LATENT).alphas_cumprod
    assert torch.allclose(ours.abar.float(), theirs, atol=1e-6)
    ours = sads.family(folder(tmp_path, SD3, FLOW)).schedule
    sigmas = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0).sigmas.flip(0)
    assert torch.allclose(ours.sigma.float(), sigmas, atol=1e-6)
    assert torch.allclose(ours.network_time(torch.arange(1000)), 1000 * sigmas, atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("LCMScheduler", {}),
        ("KDPM2DiscreteScheduler", {}),
        ("UnCLIPScheduler", {}),
        ("DDPMScheduler", {"num_train_timesteps": 10}),
        ("EulerDiscreteScheduler", {"beta_schedule": "scaled_linear", "use_karras_sigmas": True}),
        ("DDIMScheduler", {"timestep_spacing": "trailing", "beta_schedule": "scaled_linear"}),
    ],
)
def test_what_a_scheduler_does_not_say_is_what_its_class_has(kind: str, settings: Any) -> None:
    found = read_scheduler({"_class_name": kind, **settings}, "it")
    theirs = getattr(diffusers, kind)(**settings).alphas_cumprod
    assert torch.allclose(found.schedule.abar.float(), theirs, atol=1e-6)
    samplers = [key for key in settings if key in schedulers.SAMPLING]
    assert found.notes == tuple(f"of it it does not matter how it samples: {k}" for k in samplers)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}),
        ("FlowMatchEulerDiscreteScheduler", {"shift": 3.0, "use_dynamic_shifting": True}),
        ("FlowMatchHeunDiscreteScheduler", {"shift": 2.0, "num_train_timesteps": 50}),
        (
            "DPMSolverMultistepScheduler",
            {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0},
        ),
    ],
)
def test_levels_of_flows_are_those_of_the_scheduler_itself(kind: str, settings: Any) -> None:
    found = read_scheduler({"_class_name": kind, **settings}, "it")
    scheduler = getattr(diffusers, kind)(**settings)
    if "flow_shift" in settings:
        scheduler.set_timesteps(found.schedule.num_levels)
    theirs = torch.as_tensor(scheduler.sigmas).flip(0)[-found.schedule.num_levels :]
    assert found.prediction == "flow"
    assert torch.allclose(found.schedule.sigma.float(), theirs.float(), atol=1e-3)
    assert any("use_dynamic_shifting" in note for note in found.notes) == (
        "use_dynamic_shifting" in settings
    )


@pytest.mark.parametrize("kind", ["SD3", "Flux", "AuraFlow", "Sana"])
def test_models_of_flows_are_known_without_a_scheduler(kind: str) -> None:
    model = type(f"{kind}Transformer2DModel", (), {"config": {}})()
    assert _usual_meaning(model).schedule.name == _usual_meaning(model).prediction == "flow"


def test_every_setting_of_diffusers_has_a_meaning() -> None:
    known = schedulers.SAMPLING.union(*schedulers.READ.values())
    unknown = {}
    for name in dir(diffusers.schedulers):
        kind = getattr(diffusers.schedulers, name, None)
        if isinstance(kind, type) and name.endswith("Scheduler") and name not in schedulers.REFUSED:
            settings = set(inspect.signature(kind).parameters) - {"args", "kwargs"}
            unknown[name] = settings - known
    assert len(unknown) > 20
    assert not any(unknown.values())
    said = read_scheduler({"_class_name": "NewScheduler", "teapot": 3, "spout": None}, "it").notes
    assert "which this diffusers does not have" in said[0]
    assert said[1] == "of it it is not known what they mean: teapot"


HUNYUAN = {
    "_class_name": "HunyuanDiT2DModel",
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "in_channels": 4,
    "patch_size": 2,
    "sample_size": 8,
    "hidden_size": 32,
    "num_layers": 2,
    "cross_attention_dim": 16,
    "cross_attention_dim_t5": 16,
    "pooled_projection_dim": 16,
    "text_len": 4,
    "text_len_t5": 4,
}
VIDEO = {
    "_class_name": "UNet3DConditionModel",
    "sample_size": 8,
    "block_out_channels": [32, 64],
    "layers_per_block": 1,
    "down_block_types": ["CrossAttnDownBlock3D", "DownBlock3D"],
    "up_block_types": ["UpBlock3D", "CrossAttnUpBlock3D"],
    "cross_attention_dim": 16,
    "attention_head_dim": 8,
}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (HUNYUAN, "does not know HunyuanDiT2DModel.* may need encoder_hidden_states, .* Wrap it"),
        (VIDEO, "UNet3DConditionModel takes videos, .* give --shape 4x8x8x8"),
    ],
)
def test_models_that_need_more_than_we_know_are_refused(
    tmp_path: Path, config: Any, message: str
) -> None:
    with pytest.raises(NetworkError, match=message):
        sads.family(folder(tmp_path, config))


def test_videos_have_a_fourth_axis(tmp_path: Path) -> None:
    family = sads.family(folder(tmp_path, VIDEO), shape=(4, 2, 8, 8))
    assert family.build()(torch.randn(1, 4, 2, 8, 8), torch.ones(1)).shape == (1, 4, 2, 8, 8)


@pytest.mark.parametrize("betas", ["linear", "scaled_linear", "squaredcos_cap_v2"])
@pytest.mark.parametrize("kind", ["DDPMScheduler", "DDIMScheduler"])
def test_the_last_level_is_moved_to_noise_alone_as_diffusers_does(
    tmp_path: Path, betas: str, kind: str
) -> None:
    given = {"beta_schedule": betas, "rescale_betas_zero_snr": True}
    theirs = getattr(diffusers, kind)(prediction_type="v_prediction", **given).alphas_cumprod
    config = {"_class_name": kind, "prediction_type": "v_prediction", **given}
    family = sads.family(folder(tmp_path, UNET, config))
    ours = family.schedule
    assert torch.allclose(ours.abar.float(), theirs, rtol=1e-3, atol=1e-6)
    assert ours.signal[-1] == 0
    assert ours.sigma[-1] == 1
    assert not family.notes
    for prediction in ("epsilon", "v", "x0", "score"):  # scores exist, at the last level too
        assert all(c.isfinite().all() for c in ours.score_coefficients(prediction))
    assert ours.describe()["zero_snr"] is True
    with pytest.raises(InvalidArgumentError, match="ends at noise alone"):
        family.check_trainable()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "flow"}, "cannot be moved"),
        ({"name": "cosine", "num_levels": 1}, "cannot be moved"),
        ({"zero_snr": "yes"}, "must be True or False"),
    ],
)
def test_levels_that_cannot_end_at_noise_alone_are_refused(options: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        sads.Schedule(**{"zero_snr": True, **options})


@pytest.mark.parametrize(
    ("config", "scheduler"),
    [
        (UNET, diffusers.DDPMScheduler(num_train_timesteps=300)),
        (SD3, diffusers.FlowMatchEulerDiscreteScheduler(num_train_timesteps=4000)),
    ],
)
def test_networks_get_the_times_that_they_were_trained_with(
    tmp_path: Path, config: Any, scheduler: Any
) -> None:
    given = {"_class_name": type(scheduler).__name__, **scheduler.config}
    family = sads.family(folder(tmp_path, config, given))
    network = family.build()
    seen: list[torch.Tensor] = []
    network.model.forward = lambda x, timestep, **_: (seen.append(timestep), (x,))[1]
    levels = torch.tensor([0, 7, family.schedule.num_levels - 1])
    network(torch.zeros(3, *family.shape), family.schedule.network_time(levels))
    expected = scheduler.timesteps.flip(0)[levels].float()
    assert torch.allclose(seen[0], expected, rtol=1e-5)
    described = family.describe()["options"]
    assert described["time_scale"] == family.schedule.num_levels / 1000
    usual = sads.family(folder(tmp_path, UNET, {"num_train_timesteps": 1000}))
    assert "time_scale" not in usual.describe()["options"]


LEARNED = {**UNET, "time_embedding_type": "learned", "num_train_timesteps": 1000}
PIXART = {
    "_class_name": "PixArtTransformer2DModel",  # moves activations to where a parameter is
    **TOKENS,
    "in_channels": 4,
    "out_channels": 4,
    "cross_attention_dim": 16,
    "caption_channels": 12,
    "patch_size": 2,
}


@pytest.mark.parametrize("config", [LEARNED, PIXART])
def test_models_with_habits_of_their_own_are_drawn_layer_by_layer(
    tmp_path: Path, config: Any
) -> None:
    family = sads.family(folder(tmp_path, config))
    whole, streamed = (sads.estimate_geometry(family, 4, streaming=s) for s in (False, True))
    assert whole.estimator == streamed.estimator == "integrated"
    assert whole.provenance.notes == streamed.provenance.notes
    assert (whole.factors - streamed.factors).abs().max() < 1e-5 * whole.factors.abs().max()


@pytest.mark.parametrize("config", [UNET, CROSS, SD3])
def test_geometries_of_models_are_integrated(tmp_path: Path, config: Any) -> None:
    geometry = sads.estimate_geometry(sads.family(folder(tmp_path, config)), 16)
    assert geometry.estimator == "integrated"
    assert geometry.provenance.family["options"]["class"] == config["_class_name"]
    loaded = sads.load_geometry(geometry.save(tmp_path / "geometry.safetensors"))
    assert loaded.provenance == geometry.provenance or torch.equal(
        loaded.factor(), geometry.factor()
    )


def test_a_plain_loop_over_diffusers_agrees_within_errors(tmp_path: Path) -> None:
    """Modules built one by one, `reset_parameters` by their constructor, outer products."""
    family = sads.family(folder(tmp_path, UNET))
    geometry = sads.estimate_geometry(family, 256, seed=1)
    weight = float((1 / family.schedule.sigma**2).mean())
    law = torch.distributions.Categorical(probs=1 / family.schedule.sigma**2)
    torch.manual_seed(0)
    arguments = {k: v for k, v in UNET.items() if k != "_class_name"}
    total, squares, count = 0.0, 0.0, 125
    with torch.no_grad():
        for _ in range(count):
            model = diffusers.UNet2DModel(**arguments).eval()
            output = model(torch.zeros(1, 3, 8, 8), law.sample((1,)).float()).sample
            mean = float(output.mean(dim=(2, 3)).square().mean()) * 64 * weight
            total, squares = total + mean, squares + mean**2
    plain = total / count
    error = ((squares / count - plain**2) / count) ** 0.5
    smooth = geometry.energy(torch.ones(3, 8, 8) / (3 * 64) ** 0.5)
    assert abs(plain - smooth) < 4 * (error**2 + smooth.error**2) ** 0.5
    assert error < 0.15 * plain


def test_bare_classes_and_factories_are_taken_as_they_are() -> None:
    options = {k: v for k, v in UNET.items() if k != "_class_name"}
    by_class = sads.family(diffusers.UNet2DModel, **options)
    assert by_class.shape == (3, 8, 8)
    by_factory = sads.family(lambda: diffusers.UNet2DModel(**options), shape=(3, 8, 8))
    first, second = (sads.estimate_geometry(f, 16) for f in (by_class, by_factory))
    assert torch.equal(first.factor(), second.factor())
    with pytest.raises(InvalidArgumentError, match="has no option depth"):
        sads.family(diffusers.UNet2DModel, depth=3)


def test_factories_work_on_meta(tmp_path: Path) -> None:
    family = sads.family(folder(tmp_path, CROSS), condition="normal")
    with torch.device("meta"):
        network = family.factory()
    assert {p.device.type for p in network.parameters()} == {"meta"}
    assert network._values["encoder_hidden_states"].device.type == "cpu"


def test_an_output_layer_of_zeros_is_drawn_and_said() -> None:
    class Zero(diffusers.UNet2DModel):
        def __init__(self, **options: Any):
            super().__init__(**options)
            torch.nn.init.zeros_(self.conv_out.weight)
            torch.nn.init.zeros_(self.conv_out.bias)

    options = {k: v for k, v in UNET.items() if k != "_class_name"}
    zero = sads.family(lambda: Zero(**options), shape=(3, 8, 8))
    with pytest.raises(SadsError, match="starts at zero"):
        sads.estimate_geometry(zero, 16)
    drawn = sads.estimate_geometry(zero, 16, zero_readout="default")
    assert any("starts at zero" in note for note in drawn.provenance.notes)
    stock = sads.estimate_geometry(sads.family(diffusers.UNet2DModel, **options), 16)
    assert torch.equal(drawn.factor(), stock.factor())
    assert sads.family(diffusers.UNet2DModel, **options).zero_readout == "default"


def test_given_conditions_are_used_and_checked(tmp_path: Path) -> None:
    path = folder(tmp_path, CROSS)
    states = np.random.default_rng(0).standard_normal((5, 12)).astype(np.float32)
    np.savez(tmp_path / "text.npz", encoder_hidden_states=states)
    network = sads.family(path, condition=str(tmp_path / "text.npz")).build()
    assert torch.equal(network._values["encoder_hidden_states"][0], torch.from_numpy(states))
    for wrong in (
        {"encoder_hidden_states": torch.zeros(5, 11)},
        {"encoder_hidden_states": torch.zeros(12)},
        {"encoder_hidden_states": torch.full((5, 12), torch.nan)},
        {"pooled": torch.zeros(3)},
    ):
        with pytest.raises(InvalidArgumentError, match="condition"):
            sads.family(path, condition=wrong)
    with pytest.raises(InvalidArgumentError, match="there are no conditions"):
        sads.family(path, condition="nowhere.npz")
    with pytest.raises(InvalidArgumentError, match="whole number from 0 to 9"):
        sads.family(
            folder(tmp_path, DIT), drop_variance=True, condition={"class_labels": torch.tensor(11)}
        )


def test_a_learned_variance_is_named_and_can_be_dropped(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="--drop-variance"):
        sads.family(folder(tmp_path, DIT))
    family = sads.family(folder(tmp_path, DIT), drop_variance=True)
    geometry = sads.estimate_geometry(family, 16)
    assert (geometry.estimator, geometry.lift.size) == ("integrated", 16)
    assert any("learned variance" in note for note in geometry.provenance.notes)


HOSTILE = {
    "no class": ({}, "_class_name"),
    "unknown class": ({**UNET, "_class_name": "UNet9DModel"}, "does not have among its models"),
    "not a model": ({**UNET, "_class_name": "DDPMScheduler"}, "does not have among its models"),
    "a module": ({**UNET, "_class_name": "os"}, "does not have among its models"),
    "an attribute": ({**UNET, "_class_name": "os.system"}, "_class_name"),
    "an autoencoder": ({"_class_name": "AutoencoderKL"}, "no score network"),
    "tokens": ({"_class_name": "UVit2DModel"}, "no score network"),
    "a list": ([UNET], "holds no configuration"),
    "no JSON": ("{", "cannot be read"),
    "twice": ('{"_class_name": "UNet2DModel", "_class_name": "UNet2DModel"}', "twice"),
    "huge": ({**UNET, "block_out_channels": [10**12, 8]}, "at most"),
    "longer than a float": ({**UNET, "sample_size": 10**400}, "at most"),
    "many layers": ({**UNET, "layers_per_block": 10**6}, "layers"),
    "infinite": ('{"_class_name": "UNet2DModel", "norm_eps": 1e999}', "expected a number"),
    "an object": ({**UNET, "act_fn": {"a": 1}}, "expected a number, a word"),
    "a wrong word": ({**UNET, "act_fn": "nothing"}, "does not describe a UNet2DModel"),
    "a wrong type": ({**UNET, "block_out_channels": "x"}, "does not describe a UNet2DModel"),
    "no size": ({**UNET, "sample_size": None}, "--shape"),
    "a huge size": ({**UNET, "sample_size": 1 << 19}, "too large"),
    "a negative size": ({**UNET, "sample_size": -8}, "--shape"),
    "other channels": ({**UNET, "out_channels": 5}, "returns what it is given"),
    "variance": ({**UNET, "out_channels": 6}, "--drop-variance"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_configurations_are_refused(tmp_path: Path, case: str) -> None:
    config, message = HOSTILE[case]
    with pytest.raises(SadsError, match=message) as caught:
        sads.family(folder(tmp_path, config))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "scheduler",
    [
        {"num_train_timesteps": "x"},
        {"num_train_timesteps": 1.5},
        {"num_train_timesteps": 10**400},
        {"_class_name": ["x"]},
        {"prediction_type": "teapot"},
        {"prediction_type": ["v_prediction"]},
        {"_class_name": "CMStochasticIterativeScheduler"},
        {"beta_schedule": "linear", "beta_start": -1},
        {"beta_schedule": "linear", "beta_start": 0.9, "beta_end": 0.1},
        {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 0},
        {"_class_name": "EDMEulerScheduler", "sigma_max": 1e-9},
        {"_class_name": "EDMEulerScheduler", "prediction_type": "v_prediction"},
        {"_class_name": "EulerDiscreteScheduler", "timestep_type": "continuous"},
        {"_class_name": "FlowMatchEulerDiscreteScheduler", "invert_sigmas": True},
        {"_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": "yes"},
        {"_class_name": "IPNDMScheduler"},
        {"_class_name": "SCMScheduler"},
        [1],
    ],
)
def test_hostile_schedulers_are_refused(tmp_path: Path, scheduler: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        sads.family(folder(tmp_path, UNET, scheduler))


def test_a_pipeline_names_the_folders_of_its_models(tmp_path: Path) -> None:
    folder(tmp_path, CROSS)
    index = {
        "_class_name": "StableDiffusionPipeline",
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "scheduler": ["diffusers", "PNDMScheduler"],
        "../../etc": ["diffusers", "Evil"],
    }
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    for place in (tmp_path, tmp_path / "model_index.json"):
        with pytest.raises(InvalidArgumentError, match="is a pipeline") as caught:
            sads.family(f"diffusers:{place}")
        message = str(caught.value)
        assert "unet (UNet2DConditionModel), vae (AutoencoderKL)" in message
        assert message.endswith(f"diffusers:{tmp_path}/unet")
        assert "etc" not in message


def test_names_on_the_hub_are_looked_up(tmp_path: Path, monkeypatch: Any) -> None:
    hub = pytest.importorskip("huggingface_hub")
    folder(tmp_path / "hub", UNET, LATENT)
    asked = []

    def download(repository: str, file: str, **_: Any) -> str:
        asked.append((repository, file))
        path = tmp_path / "hub" / file
        if not path.is_file():
            raise hub.errors.EntryNotFoundError("404")
        return str(path)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    monkeypatch.chdir(tmp_path)
    family = sads.family("diffusers:owner/name/unet")
    assert (family.shape, family.schedule.name) == ((3, 8, 8), "scaled-linear")
    assert ("owner/name", "unet/config.json") in asked
    assert all(file.endswith(".json") for _, file in asked)

    def offline(*_: Any, **__: Any) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(hub, "hf_hub_download", offline)
    with pytest.raises(InvalidArgumentError, match="no route to host"):
        sads.family("diffusers:owner/name")
    for text in ("", "nowhere", "../../etc/passwd", "a/b/c/d", "owner/../name"):
        with pytest.raises(InvalidArgumentError):
            configurations.find(text)


def test_the_command_takes_a_folder_and_ends_in_one_line(tmp_path: Path, command: Sads) -> None:
    path = folder(tmp_path, DIT, LATENT)
    printed = command.succeed("geometry", path, "--networks", 16, "--drop-variance", "--json")
    said = json.loads(printed)["provenance"]["family"]
    assert said["schedule"] == {"name": "scaled-linear", "num_levels": 1000}
    assert "--drop-variance" in command.fail("geometry", path)
    assert "there are no conditions" in command.fail("geometry", path, "--condition", "x")
    assert "only for models" in command.fail("geometry", "iddpm", "--condition", "normal")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop_variance": "no"}, "drop_variance is 'no', expected True or False"),
        ({"text_length": True}, "text_length is True, expected 1 to"),
        ({"text_length": {"a": np.ones((9, 9))}}, "text_length is .*, expected 1 to"),
    ],
)
def test_options_of_ours_are_what_they_must_be(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as refusal:
        sads.family(folder(tmp_path, CROSS), **options)
    assert "\n" not in str(refusal.value)
