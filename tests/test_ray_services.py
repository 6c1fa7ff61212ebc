"""runtime/ray_services.py over sockets; that a run with real Ray heals is in test_ray.py."""

import socket
import subprocess
import sys
import time

import pytest

from dicerl.runtime import ray_services
from dicerl.runtime.ray_services import Service, Services


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def service(listener, returns, name="head (GCS)"):
    return Service(name, *listener.getsockname(), returns, time.monotonic())


@pytest.fixture
def look(monkeypatch):
    """Look at services, as if a second had passed since the last look."""
    monkeypatch.setattr(ray_services, "LOOK_EVERY", 0.0)
    return lambda services: services.lost()


def test_nothing_is_lost_while_all_accept_connections(listener, look):
    services = Services([service(listener, True), service(listener, False)], patience=60.0)
    assert look(services) == ""
    assert services.head_answers()


def test_what_nobody_starts_again_is_lost_at_once(listener, look):
    head = service(listener, False)
    services = Services([head], patience=60.0)
    listener.close()
    assert look(services) == f"Ray's head (GCS) at 127.0.0.1:{head.port} is gone"
    assert not services.head_answers()


def test_what_may_come_back_is_lost_after_a_while(listener, look):
    head = service(listener, True)
    services = Services([head], patience=60.0)
    address = listener.getsockname()
    listener.close()
    assert look(services) == ""
    assert not services.head_answers()
    head.answered -= 61.0
    assert look(services) == f"Ray's head (GCS) at 127.0.0.1:{head.port} has not answered for 61 s"
    with socket.create_server(address):
        assert look(services) == ""
        assert services.head_answers()


def test_the_second_of_them_is_looked_at_too(listener, look):
    with socket.create_server(("127.0.0.1", 0)) as other:
        raylet = service(other, False, "raylet")
    services = Services([service(listener, True), raylet], patience=60.0)
    assert look(services) == f"Ray's raylet at 127.0.0.1:{raylet.port} is gone"


def test_a_process_that_was_suspended_gives_the_others_time(listener, monkeypatch):
    head = service(listener, True)
    services = Services([head], patience=60.0)
    listener.close()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3600.0)
    assert services.lost() == ""


def test_it_looks_once_a_second(listener):
    services = Services([service(listener, False)], patience=60.0)
    listener.close()
    assert services.lost() == ""  # it was made just now
    time.sleep(ray_services.LOOK_EVERY)
    assert services.lost().endswith("is gone")


# --- signals

ASKED = """
import os, signal, time
heard = []
signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
from dicerl.config.presets import preset
from dicerl.runtime import ray_cluster
ray_cluster.connect(preset("debug", **{"runtime.kind": "ray"}))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.1)
ray_cluster.disconnect()
print(heard)
"""


def test_a_stop_is_ours_after_ray_has_started():
    """Ray takes SIGTERM for itself: one that a run had started while it trained, to go back to a
    checkpoint, ended it with -6 or 15 and without another checkpoint.
    """
    done = subprocess.run(
        [sys.executable, "-c", ASKED], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.strip() == "[15]", done.stderr[-2000:]
