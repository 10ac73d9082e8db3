"""Llama-style models for dev/hf.py: their tensors and their config.json, read and written: model_type llama, and qwen2,
which has biases for q, k and v. What would change the computation and is not known here is refused by name."""
import collections
import math

import numpy as np

from dev.twin import Problem
from dev.twin.weights import check_numbers, pad_vocab

# The tensors in file order, as PARAMETERS has GPT-2's, and the trainers' names. Tensors that a configuration lacks have
# no elements: biases, and the head of a tied model.
LLAMA = [
    ("model.embed_tokens.weight", ("Vp", "C"), "wte"),
    ("model.layers.{}.input_layernorm.weight", ("C",), "ln1w"),
    ("model.layers.{}.self_attn.q_proj.weight", ("NH*HS", "C"), "qw"),
    ("model.layers.{}.self_attn.k_proj.weight", ("KV*HS", "C"), "kw"),
    ("model.layers.{}.self_attn.v_proj.weight", ("KV*HS", "C"), "vw"),
    ("model.layers.{}.self_attn.q_proj.bias", ("q biases",), "qb"),
    ("model.layers.{}.self_attn.k_proj.bias", ("kv biases",), "kb"),
    ("model.layers.{}.self_attn.v_proj.bias", ("kv biases",), "vb"),
    ("model.layers.{}.self_attn.o_proj.weight", ("C", "NH*HS"), "attprojw"),
    ("model.layers.{}.post_attention_layernorm.weight", ("C",), "ln2w"),
    ("model.layers.{}.mlp.gate_proj.weight", ("F", "C"), "gatew"),
    ("model.layers.{}.mlp.up_proj.weight", ("F", "C"), "upw"),
    ("model.layers.{}.mlp.down_proj.weight", ("C", "F"), "fcprojw"),
    ("model.norm.weight", ("C",), "lnfw"), ("lm_head.weight", ("head", "C"), "headw")]


class Llama(collections.namedtuple("Llama", "context V Vp L heads C kv_heads head_size width tied qkv_bias epsilon "
                                   "theta factor low high rope_context")):
    """The shape of a Llama. A header holds epsilon, theta, factor, low and high as float32."""
    __slots__ = ()
    table, variant, embeddings = LLAMA, 3, ("model.embed_tokens.weight", "lm_head.weight")
    name, trainer, says = "Llama", "train_llama3", "3: Llama"
    tie = "config.json says that they are tied (tie_word_embeddings)"

    def dims(self):
        q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        return {"Vp": self.Vp, "C": self.C, "F": self.width, "NH*HS": q, "KV*HS": kv, "q biases": q * self.qkv_bias,
                "kv biases": kv * self.qkv_bias, "head": self.Vp * (1 - self.tied)}

    @classmethod
    def of_header(cls, h):
        floats = np.array(h[14:19], np.int32).view(np.float32).tolist()
        return cls(h[2], h[3], h[7], h[4], h[5], h[6], *h[9:14], *floats, h[19])

    def more_of_header(self):
        return [int(np.float32(x).view(np.int32)) if isinstance(x, float) else x for x in self[6:]]

    def check(self, where):
        check_numbers(self, where)
        c = self
        if c.heads % c.kv_heads != 0 or c.head_size % 2 != 0:
            raise Problem(f"{where}: {c.heads} heads read {c.kv_heads} heads of k and v, of {c.head_size} components; "
                          "expected a divisor of the heads, and an even number of components")
        scaled = 0 < c.low < c.high and c.factor > 0 and c.rope_context > 0
        plain = (c.factor, c.low, c.high, c.rope_context) == (1, 1, 1, 0)
        if not (scaled or plain) or not (c.epsilon > 0 and c.theta > 0 and all(map(math.isfinite, c[11:]))):
            raise Problem(f"{where}: epsilon is {c.epsilon}, theta {c.theta}, scaling by {c.factor} between {c.low} "
                          f"and {c.high} for a context of {c.rope_context}: these numbers do not fit")
        if {c.tied, c.qkv_bias} - {0, 1}:
            raise Problem(f"{where}: the marks of a tied head and of biases are {c.tied} and {c.qkv_bias}, expected 0 "
                          "or 1")


# What changes the model: the values that the trainers compute. The first is what a file that lacks the name means.
KNOWN = {"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,), "pretraining_tp": (1, None),
         "use_sliding_window": (False,), "partial_rotary_factor": (1, None), "rope_interleaved": (False, None),
         "quantization_config": (None,)}
NUMBERS = ("max_position_embeddings", "vocab_size", "num_hidden_layers", "num_attention_heads", "hidden_size",
           "intermediate_size")
SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def rope(values, path):
    """theta, factor, low, high and the original context. transformers 5 has all in rope_parameters, 4 has theta beside
    rope_scaling."""
    given = values.get("rope_scaling") or values.get("rope_parameters") or {}
    kind = isinstance(given, dict) and given.get("rope_type", given.get("type", "default"))
    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor", *SCALING}
    if kind not in ("default", "llama3") or given.keys() - known or given.get("partial_rotary_factor", 1) != 1:
        raise Problem(f"{path}: the rotary embedding's scaling is {given}, expected none or type llama3")
    theta = given.get("rope_theta", values.get("rope_theta", 10000.0))
    scaling = [given.get(name) for name in SCALING] if kind == "llama3" else [1, 1, 1, 0]
    if not all(type(x) in (int, float) and math.isfinite(x) for x in (theta, *scaling)):
        raise Problem(f"{path}: the rotary embedding's numbers are theta {theta}, {', '.join(SCALING)} {scaling}, "
                      "expected numbers")
    return (float(theta), *map(float, scaling[:3]), int(scaling[3]))


def read_config(values, path):
    """A model's shape, from the values of its config.json."""
    for name, accepted in KNOWN.items():
        if values.get(name, accepted[0]) not in accepted:
            raise Problem(f"{path}: \"{name}\" is {values[name]}, a variant of Llama that is not supported")
    numbers = [values.get(name) for name in NUMBERS]
    kv_heads, head_size = values.get("num_key_value_heads"), values.get("head_dim")
    if {*map(type, numbers)} - {int} or {type(kv_heads), type(head_size)} - {int, type(None)}:
        raise Problem(f"{path}: {', '.join(NUMBERS)} are {numbers}, num_key_value_heads {kv_heads}, head_dim "
                      f"{head_size}, expected whole numbers")
    tied, epsilon = values.get("tie_word_embeddings", False), values.get("rms_norm_eps", 1e-6)
    if type(tied) is not bool or type(epsilon) not in (int, float):
        raise Problem(f"{path}: tie_word_embeddings is {tied}, rms_norm_eps {epsilon}, expected a bool and a number")
    context, V, L, heads, C, width = numbers
    config = Llama(context, V, pad_vocab(V), L, heads, C, heads if kv_heads is None else kv_heads,
                   C // max(heads, 1) if head_size is None else head_size, width, int(tied),
                   int(values["model_type"] == "qwen2"), float(epsilon), *rope(values, path))
    config.check(path)
    if values.get("layer_types") not in (None, ["full_attention"] * L):
        raise Problem(f"{path}: \"layer_types\" is {values['layer_types']}, expected full_attention in all layers")
    return config


def config_json(config):
    """The values of config.json, for transformers 4 and 5."""
    theta, *scaling = (short(x) for x in config[12:16])
    name = "qwen2" if config.qkv_bias else "llama"
    given = {"rope_type": "llama3", **dict(zip(SCALING, (*scaling, config.rope_context)))} if config.rope_context \
        else {"rope_type": "default"}
    return {"model_type": name, "architectures": [f"{name.capitalize()}ForCausalLM"],
            **dict(zip(NUMBERS, (config.context, config.V, config.L, config.heads, config.C, config.width))),
            "num_key_value_heads": config.kv_heads, "head_dim": config.head_size, "hidden_act": "silu",
            "rms_norm_eps": short(config.epsilon), "tie_word_embeddings": bool(config.tied), "initializer_range": 0.02,
            "rope_theta": theta, "rope_scaling": given if config.rope_context else None,
            "rope_parameters": {"rope_theta": theta, **given}, "attention_dropout": 0.0,
            **({"use_sliding_window": False, "sliding_window": None} if config.qkv_bias else
               {"attention_bias": False, "mlp_bias": False})}


def short(x):
    """The shortest decimal number that float32 rounds to x."""
    return float(str(np.float32(x)))
