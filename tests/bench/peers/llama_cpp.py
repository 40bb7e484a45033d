#!/usr/bin/env python3
"""llama.cpp on the cases of `tandem bench rollout` (README.md here): builds it the first time."""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3] / ".deps" / "llama.cpp"
PACKAGE = "llama-cpp-python==0.3.36"
QUANTISED = ["q8_0", "q4_0"]


def run(*command, **keywords):
    print("+", *command, file=sys.stderr, flush=True)
    subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr, **keywords)


def source():
    """The source tree of llama.cpp, out of the Python package's source distribution."""
    found = list(ROOT.glob("llama_cpp_python-*/vendor/llama.cpp"))
    if not found:
        ROOT.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "-q"]
        run(*pip, "install", "--target", ROOT / "python", "scikit-build-core", "sentencepiece")
        run(*pip, "download", PACKAGE, "--no-binary", "llama-cpp-python", "--no-deps", "--no-build-isolation",
            "-d", ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
        run("tar", "-xzf", next(ROOT.glob("llama_cpp_python-*.tar.gz")), "-C", ROOT)
        found = list(ROOT.glob("llama_cpp_python-*/vendor/llama.cpp"))
    return found[0]


def bench_program():
    program = ROOT / "build" / "bin" / "llama-batched-bench"
    if not program.exists() or not program.with_name("llama-quantize").exists():
        run("cmake", "-S", source(), "-B", ROOT / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
            "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_SERVER=OFF")
        run("ninja", "-C", ROOT / "build", "-j", str(os.cpu_count()), "llama-batched-bench",
            "llama-quantize")
    return program


def gguf(model, dtype):
    name = pathlib.Path(model).resolve().name
    path = ROOT / f"{name}-{dtype}.gguf"
    if not path.exists():
        tree = source()
        environment = {**os.environ, "PYTHONPATH": f"{tree / 'gguf-py'}:{ROOT / 'python'}"}
        if dtype in QUANTISED:
            # llama-quantize rounds as every user's files are rounded; the converter knows q8_0 alone.
            run(bench_program().parent / "llama-quantize", gguf(model, "bf16"), path, dtype)
            return path
        outtype = {"bf16": "bf16", "fp32": "f32"}[dtype]
        run(sys.executable, tree / "convert_hf_to_gguf.py", model, "--outtype", outtype, "--outfile", path,
            env=environment)
    return path


def times(program, path, case, threads):
    """Seconds of prefill and decode, out of the table that llama-batched-bench prints."""
    batch, prompt, new = case["batch"], case["prompt_tokens"], case["new_tokens"]
    out = subprocess.run(
        [str(program), "-m", str(path), "-c", str(batch * (prompt + new) + 64), "-b", "2048", "-ub", "512",
         "-npp", str(prompt), "-ntg", str(max(new - 1, 1)), "-npl", str(batch), "-t", str(threads),
         "-tb", str(threads), "-fa", "on"],
        check=True, capture_output=True, text=True).stdout
    # | PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |
    row = [line for line in out.splitlines() if re.match(rf"\|\s*{prompt}\s*\|", line)][-1]
    cells = [float(cell) for cell in row.strip("| \n").split("|")]
    return {"prefill_seconds": cells[4], "decode_seconds": cells[6] if new > 1 else 0.0}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--weight-format", choices=QUANTISED, help="a quantised file in place of one of --dtype")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--cases", required=True, type=json.loads)
    args = parser.parse_args()
    program, path = bench_program(), gguf(args.model, args.weight_format or args.dtype)
    threads = args.threads or os.cpu_count()
    print(json.dumps({case["name"]: times(program, path, case, threads) for case in args.cases}))


if __name__ == "__main__":
    main()
