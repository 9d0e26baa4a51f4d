"""Transformers of others lose heads and hidden units while they train; then cut, saved, loaded, exported."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import fadeout

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
STEPS = 60


def bert():
    config = transformers.BertConfig(vocab_size=17, num_labels=10, max_position_embeddings=64, **SMALL)
    return transformers.BertForSequenceClassification(config)


def vit():
    config = transformers.ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, **SMALL)
    return transformers.ViTForImageClassification(config)


def llama():
    config = transformers.LlamaConfig(vocab_size=17, num_key_value_heads=2, use_cache=False, **SMALL)
    return transformers.LlamaForCausalLM(config)


def words(images):
    return {"input_ids": images.flatten(1).long()}


def masked(images):
    return {**words(images), "attention_mask": torch.ones(len(images), 64, dtype=torch.long)}


def pixels(images):
    return {"pixel_values": images.unsqueeze(1)}


@pytest.mark.parametrize(("build", "batch"), [(bert, masked), (vit, pixels), (llama, words)])
def test_two_fifths_go_while_it_trains(tmp_path, build, batch):
    digits = load_digits()
    images, labels = torch.tensor(digits.images).float(), torch.tensor(digits.target)
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    example = batch(images[:2])
    structure = fadeout.Channels(example, by="norm")
    pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.4, steps=STEPS, structure=structure)

    def loss_of(network, some):
        logits = network(**batch(images[some])).logits
        if logits.dim() == 2:
            return F.cross_entropy(logits, labels[some])
        return F.cross_entropy(
            logits[:, :-1].flatten(0, 1), words(images[some])["input_ids"][:, 1:].flatten()
        )

    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, torch.randint(len(images), (32,))).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        before = loss_of(model, slice(100))
        pruner.remove()
        assert loss_of(model, slice(100)) == before
        small = fadeout.compact(model, example)
        torch.testing.assert_close(loss_of(small, slice(100)), before)
        left, whole = (sum(p.numel() for p in each.parameters()) for each in (small, model))
        assert 0.57 * whole < left <= 0.6 * whole
        fadeout.save(small, tmp_path / "small.safetensors")
        again = fadeout.load(tmp_path / "small.safetensors", build).eval()
        assert torch.equal(loss_of(again, slice(100)), loss_of(small, slice(100)))
    assert fadeout.export.onnx(small, tmp_path / "small.onnx", example).difference < 1e-4
