"""Attention masks of packed rows: each token sees its own document up to itself, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


def dense_mask(document_ids: torch.Tensor) -> torch.Tensor:
    """A mask for ``scaled_dot_product_attention``: True where a query (second last axis) may see a key (last).

    Padding sees itself only, so that no row of the softmax is empty (it would give NaN). Memory grows with the square
    of the length: 4 MiB a row at 2,048; use ``block_mask`` where FlexAttention runs.

    Args:
        document_ids: Shape ``[batch, length]`` or ``[length]``, -1 on padding.

    Returns:
        Shape ``[batch, 1, length, length]`` (the 1 stands for all heads), bool.
    """
    ids = document_ids if document_ids.dim() == 2 else document_ids[None]
    length = ids.shape[-1]
    causal = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
    same = (ids[:, :, None] == ids[:, None, :]) & (ids >= 0)[:, :, None]
    itself = torch.eye(length, dtype=torch.bool, device=ids.device)
    return ((same & causal) | itself)[:, None]


def block_mask(document_ids: torch.Tensor, block_size: int = 128) -> BlockMask:
    """The same mask for ``torch.nn.attention.flex_attention``, which skips blocks where nothing may be seen.

    Args:
        document_ids: Shape ``[batch, length]`` or ``[length]``, -1 on padding, on the device of the queries.
        block_size: Tokens a block; 128 is FlexAttention's own default.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    ids = document_ids if document_ids.dim() == 2 else document_ids[None]

    def may_see(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        same = (ids[batch, query] == ids[batch, key]) & (ids[batch, query] >= 0) & (query >= key)
        return same | (query == key)

    size, length = ids.shape
    return create_block_mask(
        may_see, B=size, H=None, Q_LEN=length, KV_LEN=length, device=str(ids.device), BLOCK_SIZE=block_size
    )
