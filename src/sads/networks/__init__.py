"""Score networks, one architecture a file. Each is a plain `nn.Module` called as `net(x, t)`."""

from sads.networks.cnn import CNN
from sads.networks.dit import DiT
from sads.networks.mlp import MLP
from sads.networks.unet import UNet

__all__ = ["CNN", "MLP", "DiT", "UNet"]
