"""Translates the names of dtypes that torch's tools write into those that torch itself uses."""

from sim.nouns.workload import DTYPE_BYTES

# C++ types, as Kineto writes them.
_NAMES = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "c10::half": "float16",
    "c10::bfloat16": "bfloat16",
    "c10::float8_e4m3fn": "float8_e4m3fn",
    "c10::float8_e5m2": "float8_e5m2",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "long": "int64",
    "long int": "int64",
    "int64_t": "int64",
    "int": "int32",
    "short": "int16",
    "short int": "int16",
    "char": "int8",
    "signed char": "int8",
    "byte": "uint8",
    "unsigned char": "uint8",
}


def torch_dtype(name: str) -> str | None:
    """``"float32"`` of ``"Float"``, ``"float"``, ``"torch.float32"``; None where the name is not known."""
    plain = name.strip().lower().removeprefix("torch.")
    plain = _NAMES.get(plain, plain)
    return plain if plain in DTYPE_BYTES else None
