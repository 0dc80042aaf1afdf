"""Devices that a test of the GPU's code runs on: a CPU always, and a GPU where there is one (marker `gpu`)."""

import pytest
import torch

GPU = torch.device("cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
DEVICES = [
    pytest.param(torch.device("cpu"), id="cpu"),
    pytest.param(GPU, marks=[pytest.mark.gpu, needs_gpu], id="cuda"),
]
"""For `pytest.mark.parametrize("device", DEVICES)`."""
