#!/usr/bin/env python3
"""The numbers of SixtyClippedUpdatesAgreeWithTorch in adam_test.cc."""
import math

import torch

parameters = torch.zeros(4, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.Adam([parameters], lr=3e-3)
for t in range(1, 61):
    parameters.grad = torch.tensor([0.01 * t * math.sin(t * (i + 1)) for i in range(4)],
                                   dtype=torch.float64)
    # The function's own epsilon (1e-6 in the divisor) is left out: the toy has none.
    norm = parameters.grad.norm()
    parameters.grad *= min(1.0, 1.0 / norm.item())
    optimizer.step()
print([f"{value:.12f}" for value in parameters.tolist()])
