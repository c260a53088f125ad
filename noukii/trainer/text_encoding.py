"""CLIP's text encoder as Stable Diffusion 1.5 uses it: token ids in, embeddings for the UNet out."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def clip_text_body(text_encoder: nn.Module) -> nn.Module:
    """Return the module that holds `embeddings`, `encoder` and `final_layer_norm`.

    transformers 5.6 made it the `CLIPTextModel` itself; before, it was its child `text_model`.
    """
    return text_encoder.text_model if hasattr(text_encoder, "text_model") else text_encoder


def clip_layers(text_encoder: nn.Module) -> nn.ModuleList:
    """Return the transformer layers of a `CLIPTextModel` of any transformers version."""
    return clip_text_body(text_encoder).encoder.layers


def encode_prompt(text_encoder: nn.Module, chunk_ids: Tensor, clip_skip: int | None = None) -> Tensor:
    """Return the text embeddings of a batch of prompts, as kohya's `SdTextEncodingStrategy` does.

    chunk_ids: [B, n, 77], each chunk BOS + 75 ids + EOS, n = 1, 2, 3 for 75, 150, 225 tokens.
    Returns [B, n·75 + 2, D]: the first chunk's BOS, the 75 inner positions of every chunk, the last
    position of the last chunk.
    clip_skip n: the n-th layer from the end, then the final layer norm; None and 1: the last one.
    """
    batch, chunks, length = chunk_ids.shape
    ids = chunk_ids.reshape(batch * chunks, length).to(text_encoder.device)
    if clip_skip is None or clip_skip == 1:
        hidden = text_encoder(ids).last_hidden_state
    else:
        layers = text_encoder(ids, output_hidden_states=True).hidden_states
        hidden = clip_text_body(text_encoder).final_layer_norm(layers[-clip_skip])
    if chunks == 1:
        return hidden
    hidden = hidden.reshape(batch, chunks, length, -1)
    inner = hidden[:, :, 1:-1].reshape(batch, chunks * (length - 2), -1)
    return torch.cat([hidden[:, 0, :1], inner, hidden[:, -1, -1:]], dim=1)
