"""How much work a network is, and how cores share it.

On the CPU every core works at samples of its own: at a part of the batch in training, at a batch of
its own in sampling. None then waits for another after every layer.
"""

import torch
from torch.utils.flop_counter import FlopCounterMode

from sads.environment import note_once
from sads.errors import evaluating_networks
from sads.families import ScoreFamily
from sads.seeds import generators_kept

SHARD_FLOPS = 5e8  # of a core's part of a batch: below this, a batch is not worth sharing out


def count_flops(family: ScoreFamily) -> int:
    """Floating-point operations of one evaluation of one sample."""
    with generators_kept(), torch.no_grad(), evaluating_networks():
        network = family.build()
        counter = FlopCounterMode(display=False)
        with counter:
            network(torch.zeros(1, *family.shape), torch.zeros(1))
    return max(1, counter.get_total_flops())


def num_shards(family: ScoreFamily, batch_size: int, device: torch.device) -> int:
    """Into how many parts, one for every core, to split a training batch."""
    if device.type != "cpu" or torch.get_num_threads() == 1:
        return 1
    shards = min(torch.get_num_threads(), int(3 * batch_size * count_flops(family) / SHARD_FLOPS))
    if shards > 1 and not samples_are_independent(family):
        note_once("the network mixes samples or draws random numbers; cores share whole batches")
        return 1
    return max(1, shards)


def samples_are_independent(family: ScoreFamily) -> bool:
    """Whether a sample's output in training is its own, unlike with batch norm or dropout."""
    with generators_kept(), torch.no_grad():
        network = family.build().train()
        x, time = torch.randn(4, *family.shape), torch.zeros(4)
        try:
            apart = torch.cat([network(x[:2], time[:2]), network(x[2:], time[2:])])
            return torch.allclose(network(x, time), apart, rtol=1e-3, atol=1e-5)
        except RuntimeError:  # it wants batches of a certain size
            return False
