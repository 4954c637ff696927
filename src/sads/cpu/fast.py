"""Our layers in a network, without touching it: PyTorch's functions are replaced while it runs.

A module is an object around functions of PyTorch. While a `FastNetwork` runs its network,
`F.conv2d` and `F.group_norm` are computed by `layers.py` where they fit (a `TorchFunctionMode`, so
for this call and this thread only). No module, parameter or hook is changed, whatever happens, and
it does not matter who wrote the network or how.

Normalisation and SiLU are one pass over the data, as are a convolution and what is added to it. So
the results of these two wait for what is done with them: SiLU and sums are computed along with
them; anything else is done with their value.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sads.cpu import layers
from sads.cpu.c_code import NAME, NoLibraryError, library
from sads.seeds import seeded

PYTORCH = "torch"  # the name of PyTorch's layers
Function = Callable[..., Any]
State = tuple[int, int]  # where the numbers of a weight are, and how often they were changed
Points = tuple[Tensor, State, Tensor]  # of a weight, as it was: see `layers.at_points`


def layers_name(*, on_gpu: bool = False) -> str:
    """What computes networks here, each in a thread of its own: our layers or PyTorch's."""
    if on_gpu:
        return PYTORCH
    try:
        library()
    except NoLibraryError:
        return PYTORCH
    return NAME


class FastNetwork:
    """A network, computed by our layers where they fit. It shares everything with the original.

    For one thread: PyTorch's layers use all threads, ours only one.

    Args:
        frozen: the parameters will hardly change as long as this is used: what is known of their
            kernels is kept. A kernel that did change is used as it is.
    """

    def __init__(self, network: nn.Module, *, frozen: bool = False):
        library()  # raises here, not in the middle of something
        self.network = network
        self.points: dict[int, Points] = {}
        if frozen:
            for weight in network.parameters():
                if layers.is_wide_kernel(weight):
                    kept = weight, _state(weight), layers.at_points(weight.detach())
                    self.points[id(weight)] = kept

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        with _FastFunctions(self.points):
            y = self.network(*arguments, **options)
        return _computed(y)


class _FastFunctions(TorchFunctionMode):
    def __init__(self, points: dict[int, Points]):
        super().__init__()
        self.points = points

    def __torch_function__(
        self, func: Function, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, _Waiting) for kind in types):
            if func is F.silu or func is Tensor.add or func in _OF_THE_SHAPE:
                return _Waiting.__torch_function__(func, types, args, kwargs)
            args, kwargs = _computed(args), _computed(kwargs)
        if func is F.conv2d:
            return self.conv2d(*args, **kwargs)
        if func is F.group_norm:
            return _group_norm(*args, **kwargs)
        return func(*args, **kwargs)

    def conv2d(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        if not (
            groups == 1
            and stride in _ONES
            and dilation in _ONES
            and (padding == "same" or padding in _ONES)
            and not torch.is_autocast_enabled("cpu")
            and layers.suits_convolution(input, weight, bias)
        ):
            return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
        if not layers.is_winograd(input, weight) or input.is_inference():
            return layers.convolve_few(input, weight, bias)
        kept, state, points = self.points.get(id(weight), (None, None, None))
        shape = (len(input), len(weight), *input.shape[2:])
        points = points if kept is weight and state == _state(weight) else None
        return _WaitingConvolution.of(shape, input, weight, bias, points)


_ONES = (1, (1,), (1, 1), [1], [1, 1])


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    if (
        torch.is_autocast_enabled("cpu")
        or input.is_inference()
        or not layers.suits_norm(input, num_groups, weight, bias)
    ):
        return _pytorch_norm(input, num_groups, weight, bias, eps)
    return _WaitingNorm.of(input.shape, input, num_groups, weight, bias, eps)


def _pytorch_norm(x: Tensor, *options: Any) -> Tensor:
    """PyTorch's gradient of the weights crashes if the input has channels last and needs none."""
    if torch.is_grad_enabled() and not x.requires_grad:
        x = x.clone(memory_format=torch.contiguous_format)
    return F.group_norm(x, *options)


_CPU = torch.device("cpu")
_NAN = torch.tensor(torch.nan)


class _Waiting(Tensor):
    """A result that is computed when it is known what is done with it.

    It has the shape of the result. Whoever gets past PyTorch's functions to its memory finds NaN.
    """

    arguments: tuple[Any, ...]
    versions: tuple[int, ...]
    needs_graph: bool
    value: Tensor | None

    @classmethod
    def of(cls, shape: Sequence[int], x: Tensor, *options: Any) -> Tensor:
        self = _NAN.expand(shape).as_subclass(cls)
        self.arguments = (x, *options)
        self.versions = tuple(map(_version, self.arguments))
        self.needs_graph = torch.is_grad_enabled()
        self.value = None
        return self

    def computed(self) -> Tensor:
        """The result itself, computed once."""
        if self.value is None:
            self.check_input()
            with torch.set_grad_enabled(self.needs_graph):
                self.value = self.compute()
        return self.value

    def compute(self) -> Tensor:
        raise NotImplementedError

    def may_be_combined(self) -> bool:
        """Whether what is done with it now can be computed along with it."""
        self.check_input()
        return self.value is None and self.needs_graph == torch.is_grad_enabled()

    def check_input(self) -> None:
        if self.versions != tuple(map(_version, self.arguments)):
            raise RuntimeError(
                "the input or a weight of a layer is changed before its output is used"
            )

    @classmethod
    def __torch_function__(
        cls, func: Function, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _OF_THE_SHAPE:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func is F.silu and not kwargs.get("inplace") and len(args) == 1:
            norm = args[0]
            if isinstance(norm, _WaitingNorm) and norm.may_be_combined():
                return layers.norm_silu(*norm.arguments)
        if func is Tensor.add and len(args) == 2 and not kwargs:
            for convolution, other in (args, args[::-1]):
                if isinstance(convolution, _WaitingConvolution) and convolution.may_be_combined():
                    return convolution.plus(_computed(other))
        return func(*_computed(args), **_computed(kwargs))


class _WaitingNorm(_Waiting):
    """A group normalisation, which takes SiLU along."""

    def compute(self) -> Tensor:
        return _pytorch_norm(*self.arguments)


class _WaitingConvolution(_Waiting):
    """A convolution, which takes along what is added to it."""

    def compute(self) -> Tensor:
        return layers.convolve(*self.arguments)

    def plus(self, other: Any) -> Tensor:
        if isinstance(other, Tensor) and other.dtype == torch.float32 and other.device == _CPU:
            x, weight, bias, points = self.arguments
            samples, channels = self.shape[:2]
            if other.shape == self.shape:
                return layers.convolve(x, weight, bias, points, rest=other)
            if other.shape in ((samples, channels, 1, 1), (1, channels, 1, 1)):
                shift = other.flatten(1).expand(samples, channels)
                return layers.convolve(x, weight, bias, points, shift=shift)
        return self.computed() + other


def _state(weight: Tensor) -> State:
    return weight.data_ptr(), _version(weight)


def _version(x: Any) -> int:
    """How often a tensor was changed; of those of inference mode nobody counts it."""
    return x._version if isinstance(x, Tensor) and not x.is_inference() else 0


# What may be asked of a result that is not there yet.
_OF_THE_SHAPE: set[Function] = {
    *(vars(torch._C.TensorBase)[name].__get__ for name in ("shape", "dtype", "device", "ndim")),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__),
}


def _computed(content: Any) -> Any:
    """The same with every result that waits replaced by its value."""
    if isinstance(content, _Waiting):
        return content.computed()
    if type(content) in (list, tuple):
        return type(content)(map(_computed, content))
    if type(content) is dict:
        return {key: _computed(value) for key, value in content.items()}
    return content


def fast_network(
    network: nn.Module,
    build: Callable[[], nn.Module],
    shape: Sequence[int],
    *,
    frozen: bool = False,
) -> FastNetwork:
    """`network` with our layers; an error if a network that `build` makes does not work with them.

    Such networks want their images in the usual order in memory, or draw random numbers for them.
    What is tried is a fresh network in place of the given one, so that a training run and its
    continuation decide alike.
    """
    with seeded(0), torch.set_grad_enabled(not frozen):
        tried = copy.deepcopy(build()).train(not frozen)
        x, time = torch.randn(2, *shape), torch.zeros(2)
        state = torch.get_rng_state()
        expected = _values_and_gradients(tried, tried, x, time)
        torch.set_rng_state(state)
        fast = _values_and_gradients(FastNetwork(tried, frozen=frozen), tried, x, time)
        if not all(map(_equal, fast, expected)):
            raise RuntimeError("the network returns something else")
    return FastNetwork(network, frozen=frozen)


def _values_and_gradients(
    forward: Callable[..., Tensor], network: nn.Module, x: Tensor, time: Tensor
) -> tuple[Tensor, Tensor]:
    """What a network returns, and the gradients of all of its parameters in one row."""
    y = forward(x, time)
    if not y.requires_grad:
        return y, torch.empty(0)
    parameters = [p for p in network.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(y.square().sum(), parameters, materialize_grads=True)
    return y.detach(), torch.cat([g.flatten() for g in gradients])


def _equal(mine: Tensor, theirs: Tensor) -> bool:
    """Up to rounding: an entry that is almost 0 may be anything that is small beside the others."""
    if mine.shape != theirs.shape:
        return False
    largest = float(theirs.abs().max()) if theirs.numel() else 0.0
    return torch.allclose(mine, theirs, rtol=1e-2, atol=1e-3 * largest)
