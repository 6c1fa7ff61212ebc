"""A video of one episode: the game's own picture, and beside it a strip with the return so far, V,
the temperature and pi(.|s).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import Any

import imageio_ffmpeg
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from dicerl.envs import FilmedEnv
from dicerl.errors import DicerlError
from dicerl.parts.evaluator import Step
from dicerl.records import files

# a picture less than this many pixels high is enlarged by a whole factor; Atari's 210 is not
SMALLEST = 200
STRIP = 160, 210  # width and height of the strip's layout; it is drawn at the picture's height
BACKGROUND, DIM, LIGHT, WHITE = (17, 19, 24), (140, 146, 158), (205, 209, 216), (255, 255, 255)
# orange and sky blue: distinguishable when colour-blind, too
TRACK, CHOSEN, OTHER = (38, 42, 51), (230, 159, 0), (86, 180, 233)


class Strip:
    """Draws V, temperature and action probabilities. ``height`` in pixels; the width follows."""

    def __init__(
        self, height: int, action_names: list[str], behaviour: dict[str, float], value: str = "V"
    ) -> None:
        self.unit = height / STRIP[1]
        self.width, self.height = _even(round(STRIP[0] * self.unit)), height
        self._names = action_names
        self._top = 44.0  # of the bars
        self._row = min(18.0, (STRIP[1] - self._top - 4) / len(action_names))
        self._named = self._row >= 6  # smaller letters cannot be read
        self._left = 84.0 if self._named else 7.0
        self._room = STRIP[0] - 7 - self._left
        self._label = ImageFont.load_default(min(9.0, self._row + 1.0) * self.unit)
        self._small, self._large = (
            ImageFont.load_default(size * self.unit) for size in (9.0, 18.0)
        )
        self._middle = ImageFont.load_default(12.0 * self.unit)
        self._value = value  # its title
        self._title, self._temperature = caption(behaviour)
        self._blank = self._frame()

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return x * self.unit, y * self.unit

    def _frame(self) -> Image.Image:
        """What stays the same throughout the episode: titles, the temperature, action names and the
        bars' tracks.
        """
        image = Image.new("RGB", (self.width, self.height), BACKGROUND)
        draw = ImageDraw.Draw(image)
        for x, title in ((7, "return"), (64, self._value), (108, self._title)):
            draw.text(self._at(x, 4), title, DIM, self._small)
        if "\n" in self._temperature:
            draw.multiline_text(
                self._at(108, 15), self._temperature, WHITE, self._small, spacing=self.unit
            )
        else:
            draw.text(self._at(108, 34), self._temperature, WHITE, self._middle, anchor="ls")
        for i, name in enumerate(self._names):
            y = self._top + i * self._row
            if self._named:
                draw.text(
                    self._at(7, y + self._row / 2 - 0.5), name, LIGHT, self._label, anchor="lm"
                )
            draw.rectangle(self._bar(i, 1.0), TRACK)
        return image

    def _bar(self, action: int, length: float) -> tuple[float, float, float, float]:
        gap = 0.15 * self._row if self._row >= 4 else 0.0
        y = self._top + action * self._row
        bottom = max(y + gap, y + self._row - gap - 1 / self.unit)
        right = self._left + self._room * length
        return (*self._at(self._left, y + gap), *self._at(right, bottom))

    def draw(
        self, episode_return: float, value: float, probabilities: np.ndarray, action: int | None
    ) -> np.ndarray:
        """[height, width, 3]; the chosen action's bar is orange."""
        image = self._blank.copy()
        draw = ImageDraw.Draw(image)
        score = short(episode_return)
        fits = self._large.getlength(score) <= 54 * self.unit
        draw.text(self._at(7, 34), score, WHITE, self._large if fits else self._middle, anchor="ls")
        worth = short(value, 3)
        fits = self._middle.getlength(worth) <= 42 * self.unit
        draw.text(
            self._at(64, 34), worth, WHITE, self._middle if fits else self._small, anchor="ls"
        )
        for i, probability in enumerate(probabilities.tolist()):
            if i == action or probability * self._room * self.unit >= 0.5:
                least = 2 / self._room if i == action else 0.0  # keeps an unlikely choice visible
                draw.rectangle(
                    self._bar(i, max(probability, least)), CHOSEN if i == action else OTHER
                )
        return np.asarray(image)


def caption(behaviour: dict[str, float]) -> tuple[str, str]:
    """(title, text) of an episode's temperature, or of its family's numbers; greedy if it has
    none.
    """
    if not behaviour:
        return "1/tau", "greedy"
    if "epsilon" in behaviour:
        return "epsilon", f"{behaviour['epsilon']:.3f}"
    if "weight_low" in behaviour:
        weight = behaviour["weight_low"]
        return (
            "1/tau, weight",
            (
                f"{behaviour['inv_temperature_low']:.1f},"
                f" {weight:.2f}\n{behaviour['inv_temperature_high']:.1f}, {1 - weight:.2f}"
            ),
        )
    return "1/tau", short(behaviour["inv_temperature"])


def short(value: float, digits: int = 2) -> str:
    """Whole numbers as they are, others with few digits."""
    if not math.isfinite(value):
        return str(value)
    if value == round(value):
        return f"{value:.0f}" if abs(value) < 1e6 else f"{value:.3g}"
    return (
        f"{value:.{digits}f}"
        if abs(value) < 100
        else f"{value:.1f}"
        if abs(value) < 1e5
        else f"{value:.3g}"
    )


class Film:
    """Give ``watch`` to ``evaluator.play``: it writes environment 0's episode. After the
    ``with`` block the file is complete or absent.

    ``behaviour`` is what the episode drew, {"inv_temperature": 24.0} or its family's numbers; empty
    for a greedy one. ``value_scale`` brings V into the units of the return; None where that cannot
    be done, and the strip says so. Beside ``x.mp4`` it writes ``x.json``: the episode's return,
    actions and rewards, enough to replay it. A file of that name that no film wrote is refused.
    """

    def __init__(
        self,
        path: Path,
        env: FilmedEnv,
        behaviour: dict[str, float],
        about: dict[str, Any],
        value_scale: float | None = 1.0,
    ) -> None:
        self._value_scale = value_scale
        self.path, self._env, self._behaviour, self._about = path, env, behaviour, about
        self._actions: list[int] = []
        self._rewards: list[float] = []
        self._return, self._frames, self._over = 0.0, 0, False
        # absolute: ffmpeg would take -x for an option, and tcp:x for an address
        self._temporary = path.absolute().with_name(f".{path.stem}.{os.getpid()}.tmp.mp4")
        self._strip: Strip | None = None
        self._writer: Generator[None, Any, None] | None = None
        _require_own(path.with_suffix(".json"))
        if path.is_dir():
            raise DicerlError(f"video {path} is a directory; it must be a file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._temporary.touch(exist_ok=False)  # now, not after a long episode
        except OSError as error:
            raise DicerlError(f"video {path} cannot be written: {error.strerror}") from None

    def watch(self, step: Step) -> None:
        """Add environment 0's pictures of one ``step`` to the video, until its episode ends."""
        if self._over:
            return
        action, probabilities = int(step.action[0]), np.exp(step.log_pi[0])
        if not self._behaviour:  # greedy
            probabilities = np.eye(len(probabilities))[action]
        scale = 1.0 if self._value_scale is None else self._value_scale
        value, before = scale * float(step.value[0]), self._return
        self._actions.append(action)
        self._rewards.append(float(step.reward[0]))
        self._return = float(step.returns[0])
        pictures = self._env.pictures()
        if step.number == 0:  # the very first picture, before any action
            first = pictures.pop(0)
            self._open(first)
            self._write([first], before, value, probabilities, None)
        self._write(pictures, self._return, value, probabilities, action)
        self._over = not step.alive[0]

    def _open(self, picture: np.ndarray) -> None:
        height, width = enlarge(picture).shape[:2]
        title = "V (log)" if self._value_scale is None else "V"
        self._strip = Strip(height, self._env.action_names, self._behaviour, title)
        self._writer = imageio_ffmpeg.write_frames(
            str(self._temporary),
            (width + self._strip.width, height),
            fps=self._env.fps,
            codec="libx264",
            quality=None,
            macro_block_size=1,
            # crf 16: text stays sharp; faststart: a browser plays it while it loads.
            output_params=["-crf", "16", "-preset", "veryfast", "-movflags", "+faststart"],
            ffmpeg_log_level="error",
        )
        self._writer.send(None)

    def _write(
        self,
        pictures: list[np.ndarray],
        episode_return: float,
        value: float,
        probabilities: np.ndarray,
        action: int | None,
    ) -> None:
        assert self._strip is not None
        assert self._writer is not None
        strip = self._strip.draw(episode_return, value, probabilities, action)
        for picture in pictures:
            try:
                self._writer.send(
                    np.ascontiguousarray(np.concatenate([enlarge(picture), strip], axis=1))
                )
            except OSError:
                raise self._failed() from None
            self._frames += 1

    def _failed(self) -> DicerlError:
        return DicerlError(
            f"video {self.path} could not be written: ffmpeg stopped after {self._frames} pictures"
            " (is the disk full?)"
        )

    def __enter__(self) -> Film:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
            if kind is None:
                self._finish()
        finally:
            with contextlib.suppress(FileNotFoundError):
                self._temporary.unlink()

    def _finish(self) -> None:
        """Only a complete video gets its final name."""
        try:
            written, _ = imageio_ffmpeg.count_frames_and_secs(str(self._temporary))
        except RuntimeError:
            written = 0
        if written != self._frames:
            raise self._failed()
        self._temporary.replace(self.path)
        sidecar = {
            **self._about,
            "start": self._env.start,
            "return": self._return,
            "ended": self._over,
            "steps": len(self._actions),
            "frames": self._frames,
            "fps": self._env.fps,
            "actions": self._actions,
            "rewards": self._rewards,
        }
        beside = self._temporary.with_suffix(".json")
        beside.write_text(json.dumps(sidecar) + "\n")
        beside.replace(self.path.with_suffix(".json"))


def _require_own(sidecar: Path) -> None:
    """Refuse to replace a file beside the video that is no other film's."""
    if not os.path.lexists(sidecar):
        return
    try:
        about = files.read_json(sidecar)
    except (OSError, ValueError):
        about = None
    if not isinstance(about, dict) or not {"actions", "rewards", "fps"} <= about.keys():
        raise DicerlError(
            f"video {sidecar.with_suffix('.mp4')} would replace {sidecar}, which is of no video;"
            " give it another name"
        )


def enlarge(picture: np.ndarray) -> np.ndarray:
    """By a whole factor if it is small; then to even sides, which the codec needs."""
    factor = -(-SMALLEST // picture.shape[0])
    if factor > 1:
        picture = picture.repeat(factor, axis=0).repeat(factor, axis=1)
    height, width = picture.shape[:2]
    return (
        np.pad(picture, ((0, _even(height) - height), (0, _even(width) - width), (0, 0)))
        if height % 2 or width % 2
        else picture
    )


def _even(size: int) -> int:
    return size + size % 2
