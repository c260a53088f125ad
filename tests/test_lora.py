"""The LoRA network: which layers, which names, and what it does to the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tiny_models import make_tiny_sd  # noqa: E402

from noukii.trainer.base_model import BaseModel, load_base_model  # noqa: E402
from noukii.trainer.checkpoint_header import inspect_base_model  # noqa: E402
from noukii.trainer.lora import LoraMismatch, LoraNetwork, create_network  # noqa: E402


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_sd(tmp_path_factory.mktemp("models") / "tiny sd é")


@pytest.fixture
def base(tiny_folder: Path) -> BaseModel:
    return load_base_model(
        inspect_base_model(tiny_folder), dtype=torch.float32, parts=("unet", "text_encoder")
    )


def answer(base: BaseModel, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    ids = torch.tensor(base.tokenizer.chunks("a ginger cat, looking at the camera"))
    text = base.text_encoder(ids).last_hidden_state
    latents = torch.randn(2, 4, 8, 16, generator=random).to(dtype)
    return text, base.unet(latents, torch.tensor([3, 700]), text.expand(2, -1, -1)).sample


def randomise(network: LoraNetwork, seed: int = 5) -> None:
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in network.parameters():
            value.copy_(torch.randn(value.shape, generator=random) * 0.2)


def meta_sd15() -> tuple[torch.nn.Module, torch.nn.Module]:
    """SD1.5's UNet and text encoder at full size, without memory for the weights."""
    from noukii.trainer.base_model import _empty_model

    with torch.device("meta"):
        return _empty_model("unet"), _empty_model("text_encoder")


def test_full_size_layout_is_upstreams(reference: Path) -> None:
    expected = json.loads((reference / "lora_layout_rank4.json").read_text())
    network = create_network(*meta_sd15(), rank=4, alpha=1)
    names = {torch.float32: "F32", torch.int64: "I64"}
    found = {
        name: [list(value.shape), names[value.dtype]] for name, value in network.state_dict_kohya().items()
    }
    assert found == expected
    assert len(network.lora_modules()) == 192 + 72
    assert len(network.unet_parameters()) == 2 * 192
    assert len(network.text_encoder_parameters()) == 2 * 72


def test_either_half_alone(base: BaseModel) -> None:
    unet_only = create_network(base.unet, None).state_dict_kohya()
    text_only = create_network(None, base.text_encoder).state_dict_kohya()
    both = create_network(base.unet, base.text_encoder).state_dict_kohya()
    assert all(name.startswith("lora_unet_") for name in unet_only)
    assert all(name.startswith("lora_te_text_model_encoder_layers_") for name in text_only)
    assert [*text_only, *unet_only] == list(both)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_new_lora_changes_nothing_bit_for_bit(base: BaseModel, dtype: torch.dtype) -> None:
    base.unet.to(dtype), base.text_encoder.to(dtype)
    before = answer(base, dtype)
    create_network(base.unet, base.text_encoder, rank=4).apply()
    for plain, adapted in zip(before, answer(base, dtype), strict=True):
        assert torch.equal(plain, adapted)


def test_the_formula(base: BaseModel) -> None:
    """Each layer's answer is W·x + b + multiplier · alpha / rank · up · down · x."""
    network = create_network(base.unet, base.text_encoder, rank=3, alpha=2)
    randomise(network)
    layers = {
        "lora_te_text_model_encoder_layers_1_mlp_fc2": base.text_encoder.encoder.layers[1].mlp.fc2
        if not hasattr(base.text_encoder, "text_model")
        else base.text_encoder.text_model.encoder.layers[1].mlp.fc2,
        "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_out_0": base.unet.down_blocks[0]
        .attentions[0]
        .transformer_blocks[0]
        .attn1.to_out[0],
        "lora_unet_mid_block_attentions_0_proj_in": base.unet.mid_block.attentions[0].proj_in,
    }
    weights = network.state_dict_kohya()
    network.apply()
    network.multiplier = 0.5
    for key, layer in layers.items():
        down, up = (weights[f"{key}.lora_{which}.weight"] for which in ("down", "up"))
        merged = layer.weight + 0.5 * 2 / 3 * (up.flatten(1) @ down.flatten(1)).reshape(layer.weight.shape)
        if layer.weight.ndim == 4:
            x = torch.randn(2, layer.weight.shape[1], 5, 4)
            expected = torch.nn.functional.conv2d(x, merged, layer.bias)
        else:
            x = torch.randn(2, 7, layer.weight.shape[1])
            expected = torch.nn.functional.linear(x, merged, layer.bias)
        assert torch.allclose(layer(x), expected, rtol=1e-4, atol=1e-5), key


def test_gradients_reach_the_lora_and_nothing_else(base: BaseModel) -> None:
    network = create_network(base.unet, base.text_encoder).apply()
    randomise(network)
    _, predicted = answer(base)
    predicted.square().mean().backward()
    assert all(value.grad is not None and value.grad.any() for value in network.parameters())
    for model in (base.unet, base.text_encoder):
        assert all(not value.requires_grad and value.grad is None for value in model.parameters())


def test_gradients_agree_with_plain_autograd(base: BaseModel) -> None:
    """The fused forward has the gradients of the formula, convolution and Linear alike."""
    network = create_network(base.unet, None, rank=2, alpha=1)
    randomise(network)
    for layer in (base.unet.mid_block.attentions[0].proj_in, base.unet.mid_block.attentions[0].proj_out):
        module = next(m for m in network.lora_modules() if m._base[0] is layer)
        into = layer.weight.shape[1]
        x = torch.randn(2, into, 3, 3, requires_grad=True)
        plain = layer(x) + 0.5 * torch.nn.functional.conv2d(
            torch.nn.functional.conv2d(x, module.lora_down.weight), module.lora_up.weight
        )
        wanted = torch.autograd.grad(
            plain.square().sum(), [x, module.lora_down.weight, module.lora_up.weight]
        )
        module.inject()
        found = torch.autograd.grad(
            layer(x).square().sum(), [x, module.lora_down.weight, module.lora_up.weight]
        )
        module.remove()
        for a, b in zip(found, wanted, strict=True):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)
    linear = base.unet.mid_block.attentions[0].transformer_blocks[0].ff.net[2]
    module = next(m for m in network.lora_modules() if m._base[0] is linear)
    x = torch.randn(2, 3, linear.in_features, requires_grad=True)
    matrices = [x, module.lora_down.weight, module.lora_up.weight]
    plain = linear(x) + 0.5 * (x @ module.lora_down.weight.t()) @ module.lora_up.weight.t()
    wanted = torch.autograd.grad(plain.square().sum(), matrices)
    module.inject()
    found = torch.autograd.grad(linear(x).square().sum(), matrices)
    for a, b in zip(found, wanted, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)


def test_gradient_checkpointing_changes_no_gradient(base: BaseModel) -> None:
    network = create_network(base.unet, base.text_encoder).apply()
    randomise(network)
    gradients = []
    for checkpointing in (False, True):
        network.zero_grad()
        if checkpointing:
            base.unet.train()
            base.unet.enable_gradient_checkpointing()
        answer(base)[1].square().mean().backward()
        gradients.append([value.grad.clone() for value in network.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        assert torch.allclose(plain, checkpointed, rtol=1e-5, atol=1e-9)


def test_float32_lora_on_a_bfloat16_model(base: BaseModel) -> None:
    reference = create_network(base.unet, base.text_encoder).apply()
    randomise(reference)
    exact = answer(base)[1]
    reference.remove()
    base.unet.to(torch.bfloat16), base.text_encoder.to(torch.bfloat16)
    network = create_network(base.unet, base.text_encoder).apply()
    randomise(network)
    half = answer(base, torch.bfloat16)[1]
    assert half.dtype == torch.bfloat16
    assert torch.nn.functional.mse_loss(half.float(), exact) < 1e-3 * exact.square().mean()
    half.float().square().mean().backward()
    assert all(v.dtype == v.grad.dtype == torch.float32 for v in network.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        under_autocast = answer(base, torch.float32)[1]
    assert torch.nn.functional.mse_loss(under_autocast.float(), exact) < 1e-3 * exact.square().mean()


def test_the_start_depends_on_its_seed_alone(base: BaseModel) -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = create_network(base.unet, base.text_encoder, seed=7).state_dict_kohya()
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(99)
    again = create_network(base.unet, base.text_encoder, seed=7).state_dict_kohya()
    other = create_network(base.unet, base.text_encoder, seed=8).state_dict_kohya()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first if "lora_down" in name)
    for name, value in first.items():
        if name.endswith("lora_down.weight"):  # Kaiming-uniform, a = √5: ±1/√in, variance 1/(3·in)
            into = value.shape[1]
            assert value.abs().max() <= into**-0.5
            assert value.abs().max() > 0.7 * into**-0.5
        elif name.endswith("lora_up.weight"):
            assert not value.any()


def test_alpha_zero_means_rank(base: BaseModel) -> None:
    network = create_network(base.unet, None, rank=8, alpha=0)
    assert {float(module.alpha) for module in network.lora_modules()} == {8.0}
    assert {module.scale for module in network.lora_modules()} == {1.0}


def test_dropout_only_while_training(base: BaseModel) -> None:
    network = create_network(base.unet, base.text_encoder, dropout=0.5).apply()
    randomise(network)
    network.train()
    torch.manual_seed(1)
    one = answer(base)[1]
    torch.manual_seed(2)
    assert not torch.allclose(one, answer(base)[1])
    network.eval()
    assert torch.equal(answer(base)[1], answer(base)[1])


def test_removing_gives_the_model_back(base: BaseModel) -> None:
    before = answer(base)[1]
    network = create_network(base.unet, base.text_encoder).apply()
    network.apply()  # twice is once
    randomise(network)
    changed = answer(base)[1]
    assert not torch.allclose(before, changed, atol=1e-3)
    network.remove()
    assert torch.equal(before, answer(base)[1])


def test_two_loras_add_up_and_leave_one_by_one(base: BaseModel) -> None:
    first = create_network(base.unet, None, seed=1).apply()
    randomise(first, 1)
    one = answer(base)[1]
    second = create_network(base.unet, None, seed=2).apply()
    randomise(second, 2)
    assert not torch.allclose(answer(base)[1], one, atol=1e-3)
    second.remove()
    assert torch.equal(answer(base)[1], one)


def test_loading_another_runs_weights(base: BaseModel) -> None:
    source = create_network(base.unet, base.text_encoder, rank=4, alpha=2)
    randomise(source)
    target = create_network(base.unet, base.text_encoder, rank=4, alpha=2, seed=3)
    target.load_kohya({name: value.half() for name, value in source.state_dict_kohya().items()})
    for name, value in target.state_dict_kohya().items():
        assert torch.allclose(value.float(), source.state_dict_kohya()[name].float(), atol=1e-3), name
        assert value.dtype == source.state_dict_kohya()[name].dtype


def test_weights_that_do_not_fit_are_refused(base: BaseModel) -> None:
    network = create_network(base.unet, base.text_encoder, rank=4, alpha=1)
    good = network.state_dict_kohya()
    untouched = {name: value.clone() for name, value in good.items()}
    unet_only = create_network(base.unet, None, rank=4, alpha=1)
    wider = {
        name: value.new_ones(9, *value.shape[1:]) if "lora_up" in name else value
        for name, value in good.items()
    }
    for tensors, words in (
        (unet_only.state_dict_kohya(), "--network_train_unet_only"),
        ({**good, "lora_unet_extra.alpha": torch.tensor(1.0)}, "lora_unet_extra"),
        (
            create_network(base.unet, base.text_encoder, rank=8, alpha=1).state_dict_kohya(),
            "rank 8.*--network_dim",
        ),
        (
            create_network(base.unet, base.text_encoder, rank=4, alpha=4).state_dict_kohya(),
            "alpha 4.*--network_alpha",
        ),
        (wider, "another base model"),
    ):
        with pytest.raises(LoraMismatch, match=words):
            network.load_kohya(tensors)
    with pytest.raises(LoraMismatch, match="leave --network_train_unet_only out"):
        unet_only.load_kohya(good)
    assert all(torch.equal(value, untouched[name]) for name, value in network.state_dict_kohya().items())
