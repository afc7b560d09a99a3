"""Gradients of recurrent layers, which cuDNN has for training alone."""

import pytest
import torch
from torch import nn

from coterie.engines.client_training import disable_cudnn_for_rnn


@pytest.mark.parametrize(("module", "by_cudnn"), [(nn.Sequential(nn.LSTM(2, 3)), False), (nn.GRU(2, 3), False), (nn.Linear(2, 3), True)])
def test_only_recurrent_layers_go_without_cudnn(module: nn.Module, by_cudnn: bool) -> None:
    before = torch.backends.cudnn.enabled
    with disable_cudnn_for_rnn(module):
        assert torch.backends.cudnn.enabled == (before and by_cudnn)
    assert torch.backends.cudnn.enabled == before
