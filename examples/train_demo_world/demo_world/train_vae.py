"""The stages `vae` and `decoder`: latents that one can decode sharply.

vae        encoder and decoder by reconstruction; then the statistics of the latents
decoder    the decoder alone, sharpened by an adversary; latents stay what they are
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo_world import data, exported, metrics, pictures, vae
from demo_world.run import Average, Run, count, load_half, memory, save_half, set_rate

STEM: Final = "vae"
DECODER: Final = "decoder"
PARTS: Final = ("decoder.", "post_quant_conv.")
"""What the stage `decoder` trains."""
MEAN, STD = exported.MEAN, exported.STD


class Settings(NamedTuple):
    """Args:
    base: width of encoder and decoder at full (folded) resolution.
    size: height and width of the frames.
    frames: of a training clip.
    batch: clips of a step.
    pool: clips that are drawn at once.
    rate: learning rate at its highest.
    beta: weight of the KL divergence.
    steps: at most so many, None: as many as the time allows.
    judged: held-out clips.
    judged_frames: of each of them.
    surveys: groups of so many clips by which the latents are measured.
    """

    base: int = 32
    size: tuple[int, int] = (96, 160)
    frames: int = 17
    batch: int = 16
    pool: int = 256
    rate: float = 1.5e-3
    beta: float = 2e-5
    steps: int | None = None
    judged: int = 16
    judged_frames: int = 33
    surveys: int = 8


def batches(settings: Settings, seed: int, device: torch.device) -> Iterator[Tensor]:
    """Clips without end; a pool is drawn, used once and dropped."""
    while True:
        pool = data.short_clips(settings.pool, settings.frames, seed, device, settings.size)
        seed += 1
        yield from pool.split(settings.batch)


def train(
    settings: Settings, out: Path, minutes: float, device: torch.device, *, seed: int,
    compiled: bool, resume: Path | None,
) -> None:  # fmt: skip
    """The stage `vae`; writes `vae-1.safetensors`, `vae.json` and `vae.png`."""
    torch.manual_seed(seed)
    model = _model(settings, device)
    if resume:
        _restore(model, resume)
    clip = vae.ClipVae(model, compiled=compiled)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=settings.rate, betas=(0.9, 0.95), weight_decay=1e-4,
        fused=device.type == "cuda",
    )  # fmt: skip
    average = Average(model, 0.999)
    run = Run(STEM, out, minutes, {"settings": settings._asdict(), "seed": seed,
                                   "parameters": count(model.parameters())})  # fmt: skip
    stream = batches(settings, seed * 1000 + 1, device)
    run.start()
    peak = settings.rate * (0.6 if resume else 1)
    while not run.over(settings.steps):
        set_rate(optimiser, run.rate(peak, 100))
        video = next(stream)
        try:
            with torch.autocast(device.type, torch.bfloat16):
                mean, log_variance = clip.encode(video)
                deviation = (0.5 * log_variance.float().clamp(-30, 20)).exp()
                latents = mean + deviation * torch.randn_like(deviation)
                made = clip.decode(latents)
            fit = vae.reconstruction_loss(video, made)
            loss = fit + settings.beta * vae.divergence(mean, log_variance)
            norm = _step(loss, optimiser, model.parameters())
        except Exception as error:
            clip = _plain(run, clip, error)
            continue
        average.update()
        if run.due():
            _save(average.tensors(), out, {})
            run.write()
        run.tell(loss=loss, fit=fit, norm=norm, latents=mean.float().std(), memory=memory(device))
    run.finish()
    average.swap()
    plain, held = vae.ClipVae(model), held_out(settings, device)
    stats = statistics(plain, settings, device)
    _save(dict(model.named_parameters()), out, stats)
    _judge(run, plain, held, device, "vae")


def sharpen(
    settings: Settings, source: Path, out: Path, minutes: float, device: torch.device, *,
    seed: int, compiled: bool, base: int | None = None, ratio: float = 0.35, wait: float = 0.2,
) -> None:  # fmt: skip
    """The stage `decoder`; reads what `vae` wrote in `source`, writes `decoder-1.safetensors` (for
    those weights), `decoder.json` and `decoder.png`.

    Args:
        base: width of the decoder, if it shall be a new one; None: the trained one.
        ratio: how strong the adversary's gradient is, in parts of the reconstruction's.
        wait: share of the time before the adversary joins in.
    """
    torch.manual_seed(seed + 1)
    model = _model(settings, device, base)
    stats = _restore(model, source, decoder=base is None)
    clip = vae.ClipVae(model, compiled=compiled)
    model.encoder.requires_grad_(False)
    model.quant_conv.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    adversary = Adversary().to(device)
    fused = device.type == "cuda"
    optimiser = torch.optim.AdamW(
        trained, lr=settings.rate, betas=(0.9, 0.95), weight_decay=1e-4, fused=fused
    )
    rival = torch.optim.AdamW(adversary.parameters(), lr=4e-4, betas=(0.5, 0.9), fused=fused)
    average = Average(model, 0.998)
    run = Run("decoder", out, minutes, {"settings": settings._asdict(), "seed": seed})
    stream = batches(settings, seed * 1000 + 500_000, device)
    std = stats[STD].to(device).view(1, -1, 1, 1, 1)
    last = model.decoder.conv_out.weight
    run.start()
    while not run.over(settings.steps):
        set_rate(optimiser, run.rate(settings.rate * (0.5 if base is None else 1), 50))
        video = next(stream)
        with torch.autocast(device.type, torch.bfloat16):
            with torch.no_grad():
                mean, _ = clip.encode(video)
                # The denoiser's latents are not exact either.
                loud = 0.12 * torch.rand(len(mean), 1, 1, 1, 1, device=device)
                latents = mean.float() + loud * std * torch.randn_like(mean.float())
            try:
                made = clip.decode(latents)
            except Exception as error:
                clip = _plain(run, clip, error)
                continue
        fit = vae.reconstruction_loss(video, made)
        weight, loss = torch.zeros(()), fit
        if run.share >= wait:
            with torch.autocast(device.type, torch.bfloat16):
                judged = sum(-score.float().mean() for score in adversary(made))
            pull = torch.autograd.grad(fit, last, retain_graph=True)[0].norm()
            push = torch.autograd.grad(judged, last, retain_graph=True)[0].norm()
            weight = (ratio * pull / (push + 1e-8)).clamp(max=10).detach()
            loss = fit + weight * judged
        norm = _step(loss, optimiser, trained)
        average.update()
        gap = torch.zeros(())
        if run.share >= wait * 0.5:  # the adversary may look on before it is heard
            with torch.autocast(device.type, torch.bfloat16):
                real, fake = adversary(video), adversary(made.detach())
            gap = sum(
                F.relu(1 - a.float()).mean() + F.relu(1 + b.float()).mean()
                for a, b in zip(real, fake, strict=True)
            )
            _step(gap, rival, adversary.parameters())
        if run.due():
            _save_decoder(average.tensors(), out)
            run.write()
        run.tell(fit=fit, weight=weight, adversary=gap, norm=norm, memory=memory(device))
    run.finish()
    average.swap()
    _save_decoder(dict(model.named_parameters()), out)
    _judge(run, vae.ClipVae(model), held_out(settings, device), device, "decoder")


class Adversary(nn.Module):
    """Tells drawn frames from decoded ones, by pairs of successive frames at two scales."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.fine, self.coarse = (
            nn.Sequential(
                nn.Conv2d(6, width, 4, 2, 1), nn.LeakyReLU(0.2),
                nn.Conv2d(width, 2 * width, 4, 2, 1), nn.LeakyReLU(0.2),
                nn.Conv2d(2 * width, 4 * width, 4, 2, 1), nn.LeakyReLU(0.2),
                nn.Conv2d(4 * width, 1, 3, 1, 1),
            )
            for _ in range(2)
        )  # fmt: skip

    def forward(self, video: Tensor) -> tuple[Tensor, Tensor]:
        pairs = torch.cat([video[:, :, :-1], video[:, :, 1:]], 1).transpose(1, 2).flatten(0, 1)
        return self.fine(pairs), self.coarse(F.avg_pool2d(pairs, 2))


def held_out(settings: Settings, device: torch.device) -> Tensor:
    """Clips that no stage trains on."""
    return data.short_clips(settings.judged, settings.judged_frames, 77, device, settings.size)


@torch.no_grad()
def statistics(clip: vae.ClipVae, settings: Settings, device: torch.device) -> dict[str, Tensor]:
    """Mean and standard deviation of every latent channel over clips of their own."""
    moments = torch.zeros(3, vae.CHANNELS, dtype=torch.float64)
    for seed in range(90, 90 + settings.surveys):
        video = data.short_clips(
            settings.judged, settings.judged_frames, seed, device, settings.size
        )
        mean, _ = clip.encode(video.float())
        mean = mean.double().cpu().transpose(0, 1).flatten(1)
        moments[0] += mean.shape[1]
        moments[1] += mean.sum(1)
        moments[2] += mean.square().sum(1)
    number, total, squares = moments
    centre = total / number
    return {MEAN: centre.float(), STD: (squares / number - centre**2).sqrt().float()}


@torch.no_grad()
def _judge(run: Run, clip: vae.ClipVae, video: Tensor, device: torch.device, name: str) -> None:
    truth, made = [], []
    for one in video.float().split(4):
        mean, _ = clip.encode(one)
        truth.append(one.transpose(1, 2).flatten(0, 1))
        made.append(clip.decode(mean).clamp(-1, 1).transpose(1, 2).flatten(0, 1))
    result = metrics.table(torch.cat(made), torch.cat(truth))
    frames, step = video.shape[2], max(1, video.shape[2] // 8)
    rows = []
    for index in range(0, min(len(video), 8), 2):
        place = (index // 4, index % 4 * frames)
        for source in (truth, made):
            rows.append(source[place[0]][place[1] : place[1] + frames : step][:8])
    run.say(f"held out: {result}")
    run.note(held_out=result, memory=round(memory(device), 2))
    pictures.strip(run.out / f"{name}.png", rows)


def _model(settings: Settings, device: torch.device, decoder_base: int | None = None) -> Any:
    model = vae.build(settings.base, decoder_base or settings.base).to(device)
    for parameter in model.parameters():  # channels last: what the fast convolutions take
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        if parameter.ndim in formats:
            parameter.data = parameter.data.contiguous(memory_format=formats[parameter.ndim])
    return model


def _restore(model: Any, folder: Path, *, decoder: bool = True) -> dict[str, Tensor]:
    """Fill a model from a folder, with its decoder or without; the latents' statistics, if they are
    known by now."""
    tensors = load_half(folder, STEM) | load_half(folder, DECODER)
    if not tensors:
        raise SystemExit(f"{folder} has no {STEM}-1.safetensors: run the stage vae first.")
    stats = {name: tensors.pop(name) for name in (MEAN, STD) if name in tensors}
    if not decoder:
        fresh = {k: v for k, v in model.state_dict().items() if k.startswith(PARTS)}
        tensors |= fresh
    model.load_state_dict(tensors)
    return stats


def load(folder: Path, device: torch.device) -> tuple[Any, Tensor, Tensor]:
    """The trained VAE of a folder, and mean and deviation of its latents, [1, 16, 1, 1, 1]."""
    tensors = exported.vae(folder) or load_half(folder, STEM) | load_half(folder, DECODER)
    if MEAN not in tensors:
        raise SystemExit(f"{folder} has no finished VAE: run the stage vae to its end.")
    centre, std = (tensors.pop(name).to(device).view(1, -1, 1, 1, 1) for name in (MEAN, STD))
    base = tensors["encoder.conv_in.weight"].shape[0]
    model = vae.build(base, tensors["decoder.conv_out.weight"].shape[1])
    model.load_state_dict(tensors)
    return model.to(device).requires_grad_(False).eval(), centre, std


def _save(tensors: dict[str, Tensor], out: Path, stats: dict[str, Tensor]) -> None:
    _check(tensors)
    save_half({**tensors, **stats}, out, STEM)


def _save_decoder(tensors: dict[str, Tensor], out: Path) -> None:
    _check(tensors)
    save_half({k: v for k, v in tensors.items() if k.startswith(PARTS)}, out, DECODER)


def _plain(run: Run, clip: vae.ClipVae, error: Exception) -> vae.ClipVae:
    """What goes on after compiled code failed."""
    if not clip.compiled:
        raise error
    run.say(f"goes on without torch.compile, which failed: {str(error)[:2000]}")
    return vae.ClipVae(clip.model)


def _check(tensors: dict[str, Tensor]) -> None:
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise SystemExit("weights are not finite any more: what was saved before stays.")


def _step(loss: Tensor, optimiser: torch.optim.Optimizer, parameters: Any) -> Tensor:
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(parameters, 1.0)
    optimiser.step()
    return norm
