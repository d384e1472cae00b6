"""Image models that others published measurements of, in plain torch and at their true sizes.

Parameters are declared, and modules called, in torchvision's order (GoogLeNet: in Caffe's), so that
DDP's buckets come out as they did there. A factory returns ``(model, batch)``; ``model(*batch)`` is a
scalar loss.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from sim.errors import InputError
from sim.recorder.seeded_batches import Batch, check_sizes, seeded


def _norm_conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class ResidualBlock(nn.Module):
    """torchvision's block: convolutions with batch norms, then the projection, which is called last.

    ``kernels`` are those of its convolutions; the one of 3 pixels that comes first has the stride.
    ``projection_first``: the projection is called before the convolutions, so that its gradients come last.
    """

    def __init__(self, *, widths: list[int], kernels: list[int], stride: int, projection_first: bool) -> None:
        super().__init__()
        self.projection_first = projection_first
        self.count = len(kernels)
        strided = kernels.index(3)
        for place, kernel in enumerate(kernels):
            conv = _norm_conv(widths[place], widths[place + 1], kernel, stride if place == strided else 1)
            setattr(self, f"conv{place + 1}", conv)
            setattr(self, f"bn{place + 1}", nn.BatchNorm2d(widths[place + 1]))
        self.downsample: nn.Sequential | None = None
        if stride != 1 or widths[0] != widths[-1]:
            self.downsample = nn.Sequential(
                nn.Conv2d(widths[0], widths[-1], 1, stride=stride, bias=False), nn.BatchNorm2d(widths[-1])
            )

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W] -> [B, C', H / stride, W / stride]``."""
        out = x
        kept = self._kept(x) if self.projection_first else None
        for place in range(1, self.count + 1):
            out = getattr(self, f"bn{place}")(getattr(self, f"conv{place}")(out))
            if place < self.count:
                out = functional.relu(out, inplace=True)
        out += self._kept(x) if kept is None else kept
        return functional.relu(out, inplace=True)

    def _kept(self, x: Tensor) -> Tensor:
        return x if self.downsample is None else self.downsample(x)


class ResNet(nn.Module):
    """torchvision's ResNet (v1.5), of basic blocks or bottlenecks."""

    def __init__(
        self, *, depths: list[int], bottleneck: bool, classes: int, projection_first: bool = False
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inputs = 64
        for number, depth in enumerate(depths):
            width = 64 * 2**number
            outputs = 4 * width if bottleneck else width
            blocks = []
            for place in range(depth):
                blocks.append(
                    ResidualBlock(
                        widths=[inputs, width, width, outputs] if bottleneck else [inputs, width, outputs],
                        kernels=[1, 3, 1] if bottleneck else [3, 3],
                        stride=2 if number and not place else 1,
                        projection_first=projection_first,
                    )
                )
                inputs = outputs
            setattr(self, f"layer{number + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of ``labels`` ``[B]`` for ``images`` ``[B, 3, H, W]``."""
        x = functional.relu(self.bn1(self.conv1(images)), inplace=True)
        x = functional.max_pool2d(x, 3, stride=2, padding=1)
        for number in range(1, 5):
            x = getattr(self, f"layer{number}")(x)
        x = functional.adaptive_avg_pool2d(x, 1).flatten(1)
        return functional.cross_entropy(self.fc(x), labels)


def _pictures(batch: int, image: int, classes: int) -> Batch:
    return torch.randn(batch, 3, image, image), torch.randint(classes, (batch,))


def _check_image(image: int, batch: int = 2) -> None:
    if image < 32 or (batch == 1 and image == 32):
        raise InputError(
            f"image: {image} is not legal with batch {batch}; give 32 pixels or more, 33 with a batch of 1"
        )


def resnet18(*, batch: int = 64, image: int = 224, classes: int = 1000) -> tuple[ResNet, Batch]:
    """torchvision's ``resnet18``: 11,689,512 parameters in 62 tensors."""
    check_sizes(batch=batch, image=image, classes=classes)
    _check_image(image, batch)
    with seeded():
        model = ResNet(depths=[2, 2, 2, 2], bottleneck=False, classes=classes)
        return model, _pictures(batch, image, classes)


def resnet50(*, batch: int = 32, image: int = 224, classes: int = 1000) -> tuple[ResNet, Batch]:
    """torchvision's ``resnet50``: 25,557,032 parameters in 161 tensors.

    ``sim.recorder.models:resnet50`` calls a block's projection first, torchvision calls it last: their
    gradients become ready in other orders.
    """
    check_sizes(batch=batch, image=image, classes=classes)
    _check_image(image, batch)
    with seeded():
        model = ResNet(depths=[3, 4, 6, 3], bottleneck=True, classes=classes)
        return model, _pictures(batch, image, classes)


class Vgg13(nn.Module):
    """torchvision's VGG-13 without batch norms."""

    def __init__(self, *, classes: int, hidden: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width in (64, 128, 256, 512, 512):
            for _ in range(2):
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of ``labels`` ``[B]`` for ``images`` ``[B, 3, H, W]``."""
        x = functional.adaptive_avg_pool2d(self.features(images), 7).flatten(1)
        return functional.cross_entropy(self.classifier(x), labels)


def vgg13(
    *, batch: int = 128, image: int = 224, classes: int = 1000, hidden: int = 4096
) -> tuple[Vgg13, Batch]:
    """torchvision's ``vgg13``: 133,047,848 parameters in 26 tensors."""
    check_sizes(batch=batch, image=image, classes=classes, hidden=hidden)
    _check_image(image)
    with seeded():
        return Vgg13(classes=classes, hidden=hidden), _pictures(batch, image, classes)


class Inception(nn.Module):
    """GoogLeNet's four branches, with biases and without batch norms."""

    def __init__(self, inputs: int, widths: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        ones, reduce3, threes, reduce5, fives, pooled = widths
        self.ones = nn.Conv2d(inputs, ones, 1)
        self.reduce3 = nn.Conv2d(inputs, reduce3, 1)
        self.threes = nn.Conv2d(reduce3, threes, 3, padding=1)
        self.reduce5 = nn.Conv2d(inputs, reduce5, 1)
        self.fives = nn.Conv2d(reduce5, fives, 5, padding=2)
        self.pooled = nn.Conv2d(inputs, pooled, 1)
        self.outputs = ones + threes + fives + pooled

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W] -> [B, outputs, H, W]``."""
        relu = functional.relu
        branches = (
            relu(self.ones(x)),
            relu(self.threes(relu(self.reduce3(x)))),
            relu(self.fives(relu(self.reduce5(x)))),
            relu(self.pooled(functional.max_pool2d(x, 3, stride=1, padding=1))),
        )
        return torch.cat(branches, dim=1)


class Auxiliary(nn.Module):
    """A classifier in the middle: its loss counts 0.3."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, 128, 1)
        self.fc = nn.Linear(2048, 1024)
        self.classifier = nn.Linear(1024, classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """``[B, C, H, W]`` to a scalar."""
        x = functional.relu(self.conv(functional.adaptive_avg_pool2d(x, 4))).flatten(1)
        x = functional.dropout(functional.relu(self.fc(x)), 0.7, self.training)
        return functional.cross_entropy(self.classifier(x), labels)


# Widths of the inception blocks: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool (Szegedy et al., 2015, table 1)
_INCEPTION = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


class GoogLeNet(nn.Module):
    """GoogLeNet with both auxiliary classifiers, declared where Caffe's ``bvlc_googlenet`` has them."""

    def __init__(self, *, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3)
        self.conv2_reduce = nn.Conv2d(64, 64, 1)
        self.conv2 = nn.Conv2d(64, 192, 3, padding=1)
        inputs = 192
        for name, widths in _INCEPTION.items():
            block = Inception(inputs, widths)
            setattr(self, f"inception_{name}", block)
            inputs = block.outputs
            if name in ("4a", "4d"):
                setattr(self, f"loss_{name}", Auxiliary(inputs, classes))
        self.classifier = nn.Linear(inputs, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy with 0.3 of each auxiliary one, for ``images`` ``[B, 3, H, W]``."""
        relu = functional.relu
        x = functional.max_pool2d(relu(self.conv1(images)), 3, stride=2, ceil_mode=True)
        x = functional.local_response_norm(x, 5)
        x = functional.local_response_norm(relu(self.conv2(relu(self.conv2_reduce(x)))), 5)
        x = functional.max_pool2d(x, 3, stride=2, ceil_mode=True)
        loss = torch.zeros((), device=images.device)
        for name in _INCEPTION:
            x = getattr(self, f"inception_{name}")(x)
            if name in ("4a", "4d"):
                loss = loss + 0.3 * getattr(self, f"loss_{name}")(x, labels)
            if name in ("3b", "4e"):
                x = functional.max_pool2d(x, 3, stride=2, ceil_mode=True)
        x = functional.dropout(functional.adaptive_avg_pool2d(x, 1).flatten(1), 0.4, self.training)
        return loss + functional.cross_entropy(self.classifier(x), labels)


def googlenet(*, batch: int = 64, image: int = 224, classes: int = 1000) -> tuple[GoogLeNet, Batch]:
    """Caffe's ``bvlc_googlenet`` (MG-WFBP's logs): 13,378,280 parameters in 128 tensors."""
    check_sizes(batch=batch, image=image, classes=classes)
    _check_image(image)
    with seeded():
        return GoogLeNet(classes=classes), _pictures(batch, image, classes)
