"""What the tests of videos share."""

import imageio_ffmpeg
import numpy as np


def decode(path):
    """(metadata, pictures [frames, height, width, 3]) of a video."""
    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    width, height = meta["size"]
    return meta, np.stack(
        [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader]
    ).astype(np.int16)
