"""docs/format.md is enough to write another reader: examples/reader.py is one."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

ROOT = Path(__file__).parents[2]
READER = ROOT / "examples" / "reader.py"
GOLDEN = ROOT / "tests" / "golden" / "format-1"

sys.path.insert(0, str(READER.parent))
import reader  # noqa: E402


def test_reader_is_small_and_independent() -> None:
    """It has under 100 lines and imports nothing but numpy, safetensors, xxhash and the standard library."""
    text = READER.read_text()
    assert len(text.splitlines()) < 100
    imported = set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE))
    assert imported == {"json", "re", "sys", "pathlib", "numpy", "xxhash", "safetensors"}


def test_reader_gives_the_same_tensors() -> None:
    """It verifies the newest checkpoint and reads what the safetensors library reads."""
    newest, *_ = reader.checkpoints(GOLDEN)
    manifest, tensors, documents = reader.read(GOLDEN, newest)
    assert manifest["step"]["step"] == 6
    whole = load_file(GOLDEN / "checkpoints" / "0000000006-a000001" / "model.r00000.safetensors")
    assert {name: array.tolist() for name, array in tensors["model"].items()} == {
        name: array.tolist() for name, array in whole.items()
    }
    assert tensors["notes"]["z"] == np.complex64(1 + 2j)
    assert documents[0]["progress"]["position"]["step"] == 6


def test_reader_refuses_damage_and_takes_the_next(tmp_path: Path) -> None:
    """A flipped byte is named, and the next older checkpoint is read instead."""
    store = tmp_path / "run"
    shutil.copytree(GOLDEN, store)
    damaged = reader.checkpoints(store)[0] / "documents.r00000.json"
    data = bytearray(damaged.read_bytes())
    data[100] ^= 1
    damaged.write_bytes(data)
    said = subprocess.run(
        [sys.executable, READER, store], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert "0000000006.01-a000001 refused: documents.r00000.json: bytes" in said
    assert "0000000006-a000001: step 6" in said
