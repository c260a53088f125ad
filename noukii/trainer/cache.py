"""Latents and text embeddings, computed once where they cannot change.

An image's latents are kept as mean and deviation of the VAE's posterior, not as one draw from it: every
step draws its own sample, as it would without a cache. They are computed one image at a time, so that they
depend on the image alone and not on its neighbours or an earlier run; in float32, or in bfloat16 where the
run trains in it, as kohya does (never in float16: SD1.5's VAE overflows there).

On disk they lie under the project's own cache folder, never beside the images, one file for each
(content of the image, VAE, size, mirrored). A file that does not say in its header that it is exactly this,
whose numbers are not those that were written, or not finite, is computed again. A cache that cannot be
written costs time at the next run and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy
import torch
from PIL import Image
from torch import Tensor

from noukii import files, project
from noukii.dataset.images import open_image
from noukii.dataset.samples import Sample
from noukii.disk import write_failure
from noukii.errors import RunError
from noukii.progress import Progress

VERSION = "1"
"""Goes up when pixels are prepared in another way, so that older cache files are not used."""

Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True)
class LatentKey:
    """All that an image's latents depend on, beside the VAE."""

    sha256: str
    width: int
    height: int
    resized: tuple[int, int]
    flipped: bool
    dtype: str = "float32"
    """What the VAE computed in."""

    @classmethod
    def of(cls, sample: Sample, flipped: bool, dtype: str = "float32") -> LatentKey:
        bucket, resized = sample.fit.bucket, tuple(sample.fit.resized)
        return cls(sample.image.sha256, bucket.width, bucket.height, resized, flipped, dtype)

    def words(self) -> str:
        """The key as text, for a file's name and header."""
        side = "-mirrored" if self.flipped else ""
        resized = "x".join(map(str, self.resized))
        dtype = "" if self.dtype == "float32" else f"-{self.dtype}"
        return f"{self.sha256}-{self.width}x{self.height}-from-{resized}{side}{dtype}-v{VERSION}"


@dataclass(frozen=True)
class Posterior:
    """The VAE's answer for one image: mean and standard deviation, each [4, H/8, W/8] float32 on the CPU."""

    mean: Tensor
    std: Tensor


def to_pixels(image: Image.Image, sample: Sample, flipped: bool = False) -> Tensor:
    """Return the picture as the VAE wants it: [3, H, W] float32 in -1..1.

    Scaled to `fit.resized` (area average for smaller, Lanczos for larger, as kohya does), then cut to the
    bucket around the centre.
    """
    bucket, (width, height) = sample.fit.bucket, sample.fit.resized
    if image.size != (width, height):
        smaller = image.width >= width and image.height >= height
        method = Image.Resampling.BOX if smaller else Image.Resampling.LANCZOS
        image = image.resize((width, height), method)
    left, top = (width - bucket.width) // 2, (height - bucket.height) // 2
    image = image.crop((left, top, left + bucket.width, top + bucket.height))
    if flipped:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    values = numpy.asarray(image, dtype=numpy.float32) / 127.5 - 1.0
    return torch.from_numpy(values).permute(2, 0, 1).contiguous()


def vae_identity(vae: torch.nn.Module) -> str:
    """Return 64 hex digits that stand for the weights that encode: other weights, other digits."""
    digest = hashlib.sha256()
    for name, value in sorted(vae.state_dict().items()):
        if name.startswith(("encoder.", "quant_conv.")):
            raw = value.detach().cpu().contiguous()
            digest.update(f"{name} {tuple(raw.shape)} {raw.dtype}\n".encode())
            digest.update(raw.view(torch.uint8).numpy() if raw.ndim else bytes(raw.item()))
    return digest.hexdigest()


class LatentSource:
    """Gives the latents of samples; remembers them if `remember`, also on disk if `on_disk`."""

    def __init__(
        self,
        vae: torch.nn.Module | None,
        device: torch.device,
        *,
        remember: bool,
        on_disk: bool,
        workers: int,
        keep_workers: bool = False,
        bfloat16: bool = False,
    ) -> None:
        self._vae, self._device, self._remember = vae, device, remember
        self._dtype = "bfloat16" if bfloat16 else "float32"
        self._known: dict[LatentKey, Posterior] = {}
        self._workers, self._keep_workers = workers, keep_workers
        self._pool: ThreadPoolExecutor | None = None
        self._decoding: dict[LatentKey, Future[Tensor]] = {}
        self._folder: Path | None = None
        if on_disk and vae is not None:
            self._vae_id = vae_identity(vae)
            self._folder = project.cache() / "latents" / self._vae_id[:16]

    def fill(self, samples: Iterable[Sample], say: Callable[[str], None] = lambda text: None) -> None:
        """Encode every sample once, mirrored too where its subset mirrors; RunError names a bad image."""
        wanted: dict[LatentKey, Sample] = {}
        for sample in samples:
            wanted.setdefault(self._key(sample, False), sample)
            if sample.subset.flip_aug:
                wanted.setdefault(self._key(sample, True), sample)
        missing = []
        for key, sample in wanted.items():
            found = self._read(key)
            if found is None:
                missing.append((key, sample))
            else:
                self._known[key] = found
        if len(missing) < len(wanted):
            say(f"latents: {len(wanted) - len(missing)} of {len(wanted)} found on disk")
        if not missing:
            return
        with Progress("encoding images", len(missing), "images") as progress:
            store = self._may_store(progress.say)
            pixels = _ahead(lambda item: _decode(item[1], item[0].flipped), missing, self._workers)
            for (key, sample), values in zip(missing, pixels, strict=True):
                self._known[key] = self._encode(values, sample)
                store = store and self._write(key, self._known[key], progress.say)
                progress.advance()

    @property
    def vae(self) -> torch.nn.Module | None:
        """The VAE, unless it was let go of."""
        return self._vae

    def release_vae(self, keep: bool) -> None:
        """Once everything is encoded: free the VAE's memory, or only the GPU's if it is still to decode."""
        self._vae = self._vae.to("cpu") if keep and self._vae is not None else None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def prepare(self, wanted: Sequence[tuple[Sample, bool]]) -> None:
        """Begin to decode images of a later step in the worker threads (nothing to do if they are known)."""
        if not self._workers:
            return
        for sample, flipped in wanted:
            key = self._key(sample, flipped)
            if key in self._known or key in self._decoding:
                continue
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="decode")
            self._decoding[key] = self._pool.submit(_decode, sample, flipped)

    def posterior(self, sample: Sample, flipped: bool) -> Posterior:
        """Return one sample's mean and deviation; RunError if the VAE answers with NaN or Inf."""
        key = self._key(sample, flipped)
        known = self._known.get(key)
        if known is not None:
            return known
        waiting = self._decoding.pop(key, None)
        values = waiting.result() if waiting else _decode(sample, flipped)
        made = self._encode(values, sample)
        if self._remember:
            self._known[key] = made
        return made

    def end_epoch(self) -> None:
        """End the worker threads unless they are to be kept."""
        if not self._keep_workers:
            self.close()

    def close(self) -> None:
        """End the worker threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self._decoding.clear()

    def _key(self, sample: Sample, flipped: bool) -> LatentKey:
        return LatentKey.of(sample, flipped, self._dtype)

    def _encode(self, pixels: Tensor, sample: Sample) -> Posterior:
        assert self._vae is not None
        mixed = self._dtype == "bfloat16"
        with (
            torch.no_grad(),
            torch.autocast(self._device.type, dtype=torch.bfloat16 if mixed else None, enabled=mixed),
        ):
            batch = pixels.unsqueeze(0).to(self._device)
            answer = self._vae.encode(batch).latent_dist
            made = Posterior(answer.mean[0].float().cpu(), answer.std[0].float().cpu())
        if not _is_finite(made):
            raise RunError(
                sample.image.path,
                "the base model's VAE answers with NaN or Inf for this image",
                "take the image out, or use another base model if others fail too",
            )
        return made

    def _read(self, key: LatentKey) -> Posterior | None:
        if self._folder is None:
            return None
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self._folder / f"{key.words()}.safetensors", framework="pt") as stream:
                header = stream.metadata() or {}
                found = Posterior(stream.get_tensor("mean"), stream.get_tensor("std"))
        except (OSError, SafetensorError, ValueError):
            return None
        shape = (4, key.height // 8, key.width // 8)
        sound = all(t.shape == shape and t.dtype == torch.float32 for t in (found.mean, found.std))
        return found if sound and header == self._header(key, found) and _is_finite(found) else None

    def _may_store(self, say: Callable[[str], None]) -> bool:
        """Make the cache's folder ready; False, and told, if it cannot be."""
        if self._folder is None:
            return False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            files.remove_temporaries(self._folder)
        except OSError as error:
            say(_not_kept(self._folder, error))
            return False
        return True

    def _write(self, key: LatentKey, made: Posterior, say: Callable[[str], None]) -> bool:
        from safetensors.torch import save

        assert self._folder is not None
        tensors = {"mean": made.mean.contiguous(), "std": made.std.contiguous()}
        data = save(tensors, metadata=self._header(key, made))
        try:
            files.write_bytes(self._folder / f"{key.words()}.safetensors", data)
        except OSError as error:
            say(_not_kept(self._folder, error))
            return False
        return True

    def _header(self, key: LatentKey, made: Posterior) -> dict[str, str]:
        return {"key": key.words(), "vae": self._vae_id, "sha256": _checksum(made)}


class TextSource:
    """Gives text embeddings of a frozen text encoder; each caption is encoded once."""

    def __init__(self, encode: Callable[[str], Tensor] | None) -> None:
        self._encode = encode
        self._known: dict[str, Tensor] = {}

    def fill(self, captions: Iterable[str]) -> None:
        """Encode the captions now, so that `forget_encoder` may follow."""
        for caption in captions:
            self.embedding(caption)

    def forget_encoder(self) -> None:
        """Let go of the text encoder once every caption is known."""
        self._encode = None

    def embedding(self, caption: str, remember: bool = True) -> Tensor:
        """Return the caption's embedding, [tokens, D]; shuffled captions are not remembered."""
        known = self._known.get(caption)
        if known is not None:
            return known
        assert self._encode is not None, "a caption that was not foreseen"
        made = self._encode(caption)
        if remember:
            self._known[caption] = made
        return made


def _decode(sample: Sample, flipped: bool) -> Tensor:
    from noukii.dataset.images import UnusableImage

    try:
        with open_image(sample.image.path) as image:
            return to_pixels(image, sample, flipped)
    except (UnusableImage, OSError) as error:
        raise RunError(
            sample.image.path, f"could be read at the start and cannot now: {error}", "look at the file"
        ) from None


def _not_kept(folder: Path, error: OSError) -> str:
    return f"! {write_failure(folder, error, '')}; the latents are not kept for later runs"


def _checksum(posterior: Posterior) -> str:
    digest = hashlib.sha256()
    for values in (posterior.mean, posterior.std):
        digest.update(values.contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


def _is_finite(posterior: Posterior) -> bool:
    return bool(posterior.mean.isfinite().all() and posterior.std.isfinite().all())


def _ahead(make: Callable[[Any], Made], items: Sequence[Given], workers: int) -> Iterator[Made]:
    """Yield make(item) in order, at most `workers` of them computed ahead in threads."""
    if not workers:
        yield from map(make, items)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
        waiting = [pool.submit(make, item) for item in items[:workers]]
        for following in range(len(items)):
            made = waiting.pop(0).result()
            if following + workers < len(items):
                waiting.append(pool.submit(make, items[following + workers]))
            yield made
