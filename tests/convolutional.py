"""torchvision's ResNets, ResNeXts and VGG-13 for tests of evidence, which run where torchvision is not.

Modules are declared and called in torchvision's order, so that DDP's buckets are those of its models.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sim.recorder.models import Classifier

Pair = tuple[Classifier, tuple[Tensor, Tensor]]


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    """Convolutions, then the projection, or that first: its gradients are then ready last."""

    def __init__(self, body: list[nn.Module], projection: list[nn.Module], *, projection_first: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        self.projection = nn.Sequential(*projection)
        self.projection_first = projection_first

    def forward(self, x: Tensor) -> Tensor:
        kept = self.projection(x) if self.projection_first else None
        out = self.body(x)
        out += self.projection(x) if kept is None else kept
        return nn.functional.relu(out, inplace=True)


def resnet(
    depths: Sequence[int],
    *,
    bottleneck: bool = True,
    groups: int = 1,
    group_width: int = 64,
    projection_first: bool = False,
    batch: int = 2,
    image: int = 224,
) -> Pair:
    """``[3, 4, 6, 3]`` is ResNet-50, ``[2, 2, 2, 2]`` without bottlenecks ResNet-18."""
    layers = [*_conv(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)]
    inputs = 64
    for number, depth in enumerate(depths):
        width = groups * group_width * 2**number
        outputs = (256 if bottleneck else 64) * 2**number
        for place in range(depth):
            stride = 2 if number and not place else 1
            relu = nn.ReLU(inplace=True)
            if bottleneck:
                wide = [*_conv(inputs, width, 1), relu, *_conv(width, width, 3, stride, groups)]
                body = [*wide, relu, *_conv(width, outputs, 1)]
            else:
                body = [*_conv(inputs, width, 3, stride), relu, *_conv(width, outputs, 3)]
            projection = _conv(inputs, outputs, 1, stride) if (inputs, stride) != (outputs, 1) else []
            layers.append(Residual(body, projection, projection_first=projection_first))
            inputs = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)]
    return Classifier(nn.Sequential(*layers)), pictures(batch, image)


def resnet50(*, batch: int = 2, image: int = 224, projection_first: bool = False) -> Pair:
    """25,557,032 parameters in 161 tensors."""
    return resnet([3, 4, 6, 3], projection_first=projection_first, batch=batch, image=image)


def vgg13(*, batch: int = 2, image: int = 224, hidden: int = 4096) -> Pair:
    """133,047,848 parameters in 26 tensors."""
    layers: list[nn.Module] = []
    inputs = 3
    for width in (64, 128, 256, 512, 512):
        for _ in range(2):
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    for rows, columns in ((512 * 7 * 7, hidden), (hidden, hidden)):
        layers += [nn.Linear(rows, columns), nn.ReLU(inplace=True), nn.Dropout()]
    return Classifier(nn.Sequential(*layers, nn.Linear(hidden, 1000))), pictures(batch, image)


def pictures(batch: int, image: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, image, image), torch.zeros(batch, dtype=torch.long)
