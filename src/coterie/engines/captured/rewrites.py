"""What captured steps change in a module of images in channels-last order: the same numbers up to the order of sums, in fewer passes.

Between two convolutions a network only moves numbers. A norm, an addition and a ReLU are as many passes over the images forward, and more
of them backward; in one they are the two that a mean over the batch needs. `torch.fx` finds them in any module that it can trace; a module
that it cannot, and a norm that is used otherwise, stay as they are.

Convolutions of three colours get channels of zeros, up to the 16 bytes that a GPU loads at once; those of 1x1 with a stride get the pixels
that they read.
"""

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from coterie.engines.device import has_triton

LOAD = 16  # bytes that a thread loads at once
FEW_CHANNELS = 8  # fewer than these leave half of a load empty
KINDS = (torch.bfloat16, torch.float32, torch.float64)
RELUS = (functional.relu, torch.relu)
ADDITIONS = (operator.add, operator.iadd, torch.add)


class FusedBatchNorm2d(nn.BatchNorm2d):
    """Batch norm, then what is added, then the ReLU."""

    def forward(self, x: Tensor, residual: Tensor | None = None, *, relu: bool = False) -> Tensor:
        if self._has_kernels(x, residual):
            made: Tensor = _Normalize.apply(x, residual, self.weight, self.bias, self, relu)  # type: ignore[no-untyped-call]
            return made
        h: Tensor = super().forward(x)
        h = h if residual is None else h + residual
        return h.relu() if relu else h

    def _has_kernels(self, x: Tensor, residual: Tensor | None) -> bool:
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        fits = self.training and x.dtype in KINDS and x.numel() > x.shape[1] and self.weight.dtype == wide and _has_kernels_on(x)
        ordered = fits and x.is_contiguous(memory_format=torch.channels_last)
        return ordered and (residual is None or (residual.shape == x.shape and residual.dtype == x.dtype))


class AlignedConv2d(nn.Conv2d):
    """A convolution whose input has whole loads of channels, and, of 1x1, no stride."""

    def forward(self, x: Tensor) -> Tensor:
        weight, stride = self.weight, self.stride
        if max(self.kernel_size) == 1 and max(self.stride) > 1:
            down, right = self.stride
            x, stride = x[:, :, ::down, ::right].contiguous(memory_format=torch.channels_last), (1, 1)
        size = 2 if torch.is_autocast_enabled(x.device.type) else x.element_size()
        if missing := -x.shape[1] % (LOAD // size):
            x, weight = (functional.pad(tensor, (0, 0, 0, 0, 0, missing)) for tensor in (x, weight))
        return functional.conv2d(x, weight, self.bias, stride, self.padding)


def _is_alignable(part: nn.Module) -> bool:
    if type(part) is not nn.Conv2d or part.groups > 1 or part.padding_mode != "zeros" or max(part.dilation) > 1:
        return False
    strides = max(part.kernel_size) == 1 and max(part.stride) > 1 and part.padding == (0, 0)
    return strides or (part.in_channels < FEW_CHANNELS and isinstance(part.padding, tuple))


def _has_kernels_on(x: Tensor) -> bool:
    return x.is_cuda and has_triton()


class _Normalize(torch.autograd.Function):
    """The kernels, with their way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, norm: FusedBatchNorm2d, relu: bool) -> Tensor:
        from coterie.engines.captured import norms_gpu as kernels

        if residual is not None:
            residual = residual.contiguous(memory_format=torch.channels_last)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        assert norm.momentum is not None
        running = kernels.Running(norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.momentum, norm.eps)
        y, mean, scale = kernels.normalize(x, residual, weight, bias, running, relu=relu)
        ctx.save_for_backward(x, y if relu and residual is not None else None, weight, bias, mean, scale)
        ctx.relu, ctx.adds = relu, residual is not None
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        from coterie.engines.captured import norms_gpu as kernels

        x, y, weight, bias, mean, scale = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx, passed, by_weight, by_bias = kernels.differentiate(dy, x, y, weight, bias, mean, scale, relu=ctx.relu)
        return dx, passed if ctx.adds else None, by_weight, by_bias, None, None


class _Tracer(fx.Tracer):
    """Layers with a class of this module are traced as one call, as torch's own are."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, AlignedConv2d | FusedBatchNorm2d) or super().is_leaf_module(m, module_qualified_name)


def rewrite_module(module: nn.Module) -> nn.Module:
    """The module with such convolutions and norms, its parameters and buffers under the same names. The given one is changed."""
    for part in module.modules():
        if _is_alignable(part):
            part.__class__ = AlignedConv2d
    return _fuse_norms(module)


def _fuse_norms(module: nn.Module) -> nn.Module:
    """The module with fused norms; the module itself where there is nothing to fuse, or it cannot be traced."""
    if not any(_is_fusable(part) for part in module.modules()):
        return module
    try:
        traced = fx.GraphModule(module, _Tracer().trace(module))
    except Exception:  # whatever a module's own code does with stand-ins for tensors
        return module
    for node in list(traced.graph.nodes):
        if node.op == "call_module" and _is_fusable(part := traced.get_submodule(node.target)):
            part.__class__ = FusedBatchNorm2d
            _fuse_followers(traced, node)
    traced.graph.lint()
    traced.recompile()
    return traced


def _is_fusable(part: nn.Module) -> bool:
    known = type(part) in (nn.BatchNorm2d, FusedBatchNorm2d) and part.affine and part.track_running_stats
    return bool(known) and part.momentum is not None


def _fuse_followers(traced: fx.GraphModule, norm: fx.Node) -> None:
    """Let a norm do the addition and the ReLU that alone use what it gives."""
    last = relu = _get_only_user(norm)
    residual: fx.Node | None = None
    if relu is not None and _is_addition(relu):
        residual = next((other for other in relu.all_input_nodes if other is not norm), None)
        last = relu = _get_only_user(relu) if residual is not None else None
    if last is None or relu is None or not _is_relu(traced, relu):
        return
    given = norm.args if residual is None else (*norm.args, residual)
    with traced.graph.inserting_before(last):  # behind the residual
        fused = traced.graph.call_module(str(norm.target), given, {"relu": True})
    middle = None if residual is None else next(iter(norm.users))
    last.replace_all_uses_with(fused)
    for node in (last, middle, norm):
        if node is not None:
            traced.graph.erase_node(node)


def _get_only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_relu(traced: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return type(traced.get_submodule(str(node.target))) is nn.ReLU
    if node.op == "call_method":
        return node.target in ("relu", "relu_") and len(node.args) == 1
    return node.op == "call_function" and node.target in RELUS


def _is_addition(node: fx.Node) -> bool:
    plain = len(node.args) == 2 and not node.kwargs and all(isinstance(arg, fx.Node) for arg in node.args)
    called = node.op == "call_function" and node.target in ADDITIONS
    return plain and (called or (node.op == "call_method" and node.target in ("add", "add_")))
