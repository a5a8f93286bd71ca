"""Image data in every accepted format, and everything that is refused, named by its path."""

from __future__ import annotations

import os
import pickle
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bluegrad.tasks import data, images, models

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


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize("content", [pickle.dumps({b"data": Evil(), b"labels": [1]}), b"", b"junk", pickle.dumps([1])])
def test_an_evil_or_broken_pickle_is_refused(tmp_path, content):
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="data_batch_1"):
        data.load(path)


def test_npz_with_its_own_test_part_or_a_split(tmp_path):
    x, y = np.zeros((50, 9, 9), np.uint8), np.arange(50) % 5
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    train, test = data.load_pair(tmp_path / "a.npz")
    assert len(train) == 50 and len(test) == 10 and train.images.shape[1:] == (9, 9, 1)
    np.savez(tmp_path / "b.npz", images=x, labels=y[:, None])
    train, test = data.load_pair(tmp_path / "b.npz")
    assert len(train) == 40 and np.bincount(test.labels).tolist() == [2] * 5


def test_the_split_is_a_function_of_the_seed():
    one = data.ImageData(np.arange(4 * 100, dtype=np.uint8).reshape(100, 2, 2, 1), np.arange(100) % 2, ("a", "b"), "x")
    (a, b), (c, _), (d, _) = one.split(0.3, 1), one.split(0.3, 1), one.split(0.3, 2)
    assert (a.images == c.images).all() and not (a.images == d.images).all()
    together = np.concatenate([a.images, b.images]).reshape(100, -1)
    assert {bytes(row) for row in together} == {bytes(row) for row in one.images.reshape(100, -1)}


def test_demo_digits_and_tensors():
    train, test = data.demo()
    assert len(train) == 4000 and np.bincount(test.labels).tolist() == [100] * 10
    x, y = data.to_tensor_dataset(test).tensors
    assert x.shape == (1000, 1, 28, 28) and x.dtype == torch.float32 and y.dtype == torch.int64
    assert x.min() == -1.0 and x.max() == 1.0


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


def test_bad_archives_and_arrays_are_named(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"PK but no archive")
    refused(tmp_path / "a.zip", "a.zip", "zip")
    (tmp_path / "a.bin").write_bytes(bytes(3073 + 5))
    refused(tmp_path / "a.bin", "a.bin", "3073")
    (tmp_path / "b.bin").write_bytes(bytes([200]) + bytes(3072))
    refused(tmp_path / "b.bin", "b.bin", "200")
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
    images.read(folder(tmp_path / "photos", each=4), lambda done, total: seen.append((done, total)))
    assert seen[-1] == (8, 8)


def test_the_published_network_has_its_parameters():
    assert sum(p.numel() for p in models.cifar_cnn().parameters()) == 550_570
    assert sum(p.numel() for p in models.digits_cnn().parameters()) == 26_010


@pytest.mark.parametrize(
    ("size", "channels"), [((28, 28), 1), ((32, 32), 3), ((28, 28), 3), ((17, 40), 1), ((8, 8), 3)]
)
def test_networks_fit_their_images(size, channels):
    model = models.for_images(*size, channels, 7, seed=3)
    assert model(torch.zeros(2, channels, *size)).shape == (2, 7)


def test_initial_weights_come_from_the_seed_alone():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one = models.for_images(8, 8, 1, 2, seed=1)
    assert (torch.random.get_rng_state() == before).all()
    torch.manual_seed(6)
    two, three = models.for_images(8, 8, 1, 2, seed=1), models.for_images(8, 8, 1, 2, seed=2)
    assert torch.equal(one[0].weight, two[0].weight) and not torch.equal(one[0].weight, three[0].weight)


def test_images_too_small_are_refused():
    with pytest.raises(ValueError, match="height=7"):
        models.for_images(7, 8, 1, 2)


@pytest.mark.slow
def test_cifar10_jpeg_archives():
    assert SHARED.is_dir(), f"{SHARED} is needed for this test"
    train, test = data.load_pair(SHARED / "cifar10-jpeg-train.zip", SHARED / "cifar10-jpeg-test.zip")
    assert train.images.shape == (50_000, 32, 32, 3) and test.images.shape == (10_000, 32, 32, 3)
    assert np.bincount(train.labels).tolist() == [5000] * 10 and train.classes[0] == "airplane"
