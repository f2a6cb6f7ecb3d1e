"""A small convolutional network for small images (8×8 digits, 28×28 greyscale): minutes on a CPU."""

from __future__ import annotations

from torch import Tensor, nn

from npmatch.backbones.wide_resnet import activate, conv, norm


class SmallCNN(nn.Module):
    """Three convolutions, the last two with stride 2, then global average pooling; 4·width features out."""

    def __init__(self, width: int = 32, stem_stride: int = 1, in_channels: int = 1, momentum: float = 0.05) -> None:
        """`width` is the first layer's number of channels, `stem_stride` its stride."""
        super().__init__()
        sizes = [(in_channels, width, stem_stride), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
        self.convs = nn.ModuleList(conv(i, o, 3, stride) for i, o, stride in sizes)
        self.norms = nn.ModuleList(norm(o, momentum) for _, o, _ in sizes)
        self.dropout = nn.Dropout(0.0)  # off; MC dropout turns it on
        self.num_features = 4 * width

    def forward(self, x: Tensor) -> Tensor:
        """N C H W → N F."""
        for layer, normalise in zip(self.convs, self.norms, strict=True):
            x = self.dropout(activate(normalise(layer(x))))
        return x.mean((2, 3))
