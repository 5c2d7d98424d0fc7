#!/usr/bin/env python3
"""Make a CPU environment of SGLang importable: run once, with the environment's own Python (needs cc, nm and readelf).

Two things stand in for what a CPU never calls. The torch of the package index links CUDA libraries: libraries of the same names are
built whose functions end the process, so that a call by mistake is seen at once. And SGLang imports a package of kernels that the
index carries for CUDA only: a package of that name has every attribute, and each raises when called, so SGLang takes torch's own ways.
"""
import os
import pathlib
import re
import subprocess
import sysconfig
import tempfile

LIBRARY = re.compile(r"NEEDED.*\[(lib(?:cublas|cublasLt|cudnn|cufft|cufile|curand|cusolver|cusparse|cusparseLt|nccl|nvrtc|nvshmem_host|nvJitLink)\.so[.\d]*)\]")
FUNCTION = re.compile(r"(?:cublas|cudnn|cufft|cuFile|curand|cusolver|cusparse|nccl|nvrtc|nvshmem|nvJitLink)\w*")

KERNELS = '''\
"""Stands in for SGLang's kernels on a CPU: every name is there, and calling one raises."""
import sys
import types
from importlib.machinery import ModuleSpec

__version__ = "0.0.0"


class _Types:
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    if name == "scalar_types":
        return _Types()
    if name[0].isupper():
        return type(name, (), {})

    def absent(*args, **kwargs):
        raise NotImplementedError("no kernel " + name + " on this CPU")

    return absent


class _Loader:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.startswith(__name__ + ".") else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__, module.__getattr__ = [], __getattr__
        return module

    def exec_module(self, module):
        pass


sys.meta_path.append(_Loader())
'''


def output(*command: str | pathlib.Path) -> list[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def main() -> None:
    site = pathlib.Path(sysconfig.get_paths()["purelib"])
    libs = site / "torch" / "lib"
    linked, functions = set(), set()
    for lib in libs.glob("lib*.so"):
        if lib.name.startswith(("libtorch", "libc10")):
            linked |= {m[1] for line in output("readelf", "-d", lib) if (m := LIBRARY.search(line))}
            functions |= {n for line in output("nm", "-D", "--undefined-only", lib) if FUNCTION.fullmatch(n := line.split()[-1].partition("@")[0])}
    present = {p.name for p in (site / "nvidia").rglob("*.so*")}
    source = "#include <stdlib.h>\n" + "".join(f"void {f}(void) {{ abort(); }}\n" for f in sorted(functions))
    with tempfile.TemporaryDirectory() as tmp:
        c = pathlib.Path(tmp, "standin.c")
        c.write_text(source)
        for name in sorted(linked - present):
            subprocess.run(["cc", "-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", libs / name, c], check=True)
    kernels = site / "sgl_kernel"
    kernels.mkdir(exist_ok=True)
    (kernels / "__init__.py").write_text(KERNELS)
    print(f"{len(linked - present)} libraries stand in, {len(functions)} names, and the package sgl_kernel")


if __name__ == "__main__":
    os.umask(0o022)
    main()
