"""Configuration of the optimizer and its schedule."""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from hornbook.optim.config.schedules import Cosine, Schedule
from hornbook.settings.fields import Config, Number


class AdamW(Config):
    """Loshchilov and Hutter 2019 (arXiv 1711.05101); decay falls on matrices, not on norms, biases or vectors."""

    kind: Literal["adamw"] = "adamw"
    lr: Number = Field(default=3e-4, gt=0)
    """Peak learning rate."""
    beta1: Number = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: Number = Field(default=0.95, ge=0, lt=1)
    """Decay of the second moment."""
    eps: Number = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: Number = Field(default=0.1, ge=0)
    """Decoupled decay, multiplied by the learning rate."""
    decay_embeddings: bool = False
    """Decay embeddings too (GPT-3, nanoGPT)."""
    clip: Number = Field(default=1.0, ge=0)
    """Largest global gradient norm; 0 turns clipping off."""
    schedule: Schedule = Cosine()
    """Learning rate over the run."""


OptimConfig = AdamW


@dataclass(frozen=True)
class Factors:
    """What the optimizer's settings are multiplied by for one parameter."""

    lr: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0
