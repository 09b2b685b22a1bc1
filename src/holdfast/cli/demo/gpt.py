"""A small GPT over bytes, written the way a textbook would."""

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every PyTorch script uses
from torch import Tensor, nn

VOCABULARY = 256
"""Every byte is a token."""


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each with dropout and a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Mix information between positions, then within each of them."""
        batch, length, width = x.shape
        packed = self.queries_keys_values(self.before_attention(x))
        q, k, v = packed.view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        mixed = self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        x = x + F.dropout(mixed, self.dropout, self.training)
        return x + self.feed_forward(x)


class GPT(nn.Module):
    """Predicts the next byte at every position."""

    def __init__(self, *, layers: int, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, one row of 256 per position."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(positions))))
