"""Transformers of the papers, as far as arithmetic needs them: what a layer computes beside self-attention, per token."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    layers: int
    heads: int
    head_dim: int
    tokens: int
    linear: int       # multiply-adds per token of the layer's matrices
    text: int         # keys of cross-attention; 0 where text is among the tokens
    passes: int       # guidance passes of a step
    steps: int

    @property
    def width(self):
        return self.heads * self.head_dim

    @property
    def blocks(self):
        return -(-self.tokens // 64)

    def dense_flops(self):
        """Of self-attention, one layer, one pass."""
        return 4.0 * self.tokens ** 2 * self.width

    def rest_flops(self):
        """Of everything else that counts: matrices and cross-attention."""
        return self.tokens * (2.0 * self.linear + 4.0 * self.text * self.width)

    def attention_share(self, density):
        attention = density * self.dense_flops()
        return attention / (attention + self.rest_flops())


def wan(name, layers, heads, inner, tokens=75_600):
    """Q, K, V, O; queries and output of cross-attention (its keys and values are of 512 text tokens: nothing); two matrices of the inner width."""
    width = heads * 128
    return Shape(name, layers, heads, 128, tokens, 6 * width ** 2 + 2 * width * inner, 512, 2, 50)


def joint(name, layers, heads, head_dim, tokens, passes):
    """Text among the tokens: Q, K, V, O and an inner width of four: HunyuanVideo's single blocks compute the same in two matrices."""
    return Shape(name, layers, heads, head_dim, tokens, 12 * (heads * head_dim) ** 2, 0, passes, 50)


# Sizes: the checkpoints' configurations; tokens: 720p, 81 frames (Wan), and as both papers count them (the others).
WAN_SMALL = wan("Wan2.1 1.3B", 30, 12, 8960)
WAN_LARGE = wan("Wan2.1 14B", 40, 40, 13824)
WAN22 = wan("Wan2.2 A14B", 40, 40, 13824)
HUNYUAN = joint("HunyuanVideo", 60, 24, 128, 119_056, 1)
COGVIDEO = joint("CogVideoX1.5", 42, 48, 64, 45_106, 2)
