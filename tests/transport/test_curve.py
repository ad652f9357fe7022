"""Who gets through with keys, what a link says that does not, and what files may be like."""

import contextlib
import gc
import logging
import os
import re
import socket
import threading
import traceback

import pytest
import zmq
from support.keys import guarded, key_folder, key_folders
from support.nodes import config_of, eventually
from support.ports import free_ports
from support.processes import descriptors

from dpwa import DpwaConnection
from dpwa.config.public_keys import key_bytes
from dpwa.errors import AddressError, UserError
from dpwa.transport import authenticator as authenticator_module
from dpwa.transport import keyring as keyring_module
from dpwa.transport import sockets
from dpwa.transport.addresses import is_of_this_machine
from dpwa.transport.authorizer import Authorizer
from dpwa.transport.curve import CurveAuthorizer
from dpwa.transport.keyring import Keyring
from dpwa.transport.keys import KeyFolder, KeyPair, SecretKey, read_public_key
from dpwa.transport.link import LinkState, PeerLink
from dpwa.transport.sockets import receive_from, serving_socket
from dpwa.wire.messages import AskStatus, encode


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context


@pytest.fixture(params=["tcp", "ipc"])
def endpoint(request, tmp_path):
    port = free_ports(1)[0]
    return f"tcp://127.0.0.1:{port}" if request.param == "tcp" else f"ipc://{tmp_path}/w1.sock"


@pytest.fixture
def tcp():
    return f"tcp://127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(authenticator_module, "RELOAD_EVERY_S", 0.05)


@contextlib.contextmanager
def linked(context, endpoint, keyring=None, peer="w1"):
    link = PeerLink(context, peer, endpoint, keyring)
    try:
        yield link
    finally:
        link.close()


def is_up(link):
    link.update()
    return link.state is LinkState.UP


def problem_of(link):
    link.update()
    return link.problem if link.state is LinkState.DOWN else ""


def says(link, part):
    """Wait until a link is down for a reason with these words."""
    return eventually(lambda: part in problem_of(link))


def asked(link, router):
    """Send a question over a link; return what arrives."""
    assert link.send_request(AskStatus(request=1))
    return eventually(lambda: receive_from(router, is_named=True))


# Getting through


def test_a_message_comes_with_the_key_and_so_the_name_of_its_sender(context, endpoint, tmp_path):
    folder = key_folder(tmp_path / "keys", "w1", "w2")
    with (
        guarded(context, folder, "w1", endpoint) as here,
        linked(context, endpoint, Keyring(folder, "w2")) as link,
    ):
        eventually(lambda: is_up(link))
        received = asked(link, here.router)
        assert received.user_id == folder.public_key("w2")
        assert here.authorizer.name_of(received.user_id) == "w2"
        assert here.authorizer.is_allowed(received.user_id)
        assert here.authorizer.speaks_for(received.user_id, "w2")
        assert not here.authorizer.speaks_for(received.user_id, "w1")
        assert link.problem == ""
        assert here.authorizer.report() == {"unknown_key": 0, "protocol": 0, "broken_off": 0}


def test_without_keys_nobody_has_a_name(context, endpoint):
    with serving_socket(context, endpoint) as router, linked(context, endpoint) as link:
        eventually(lambda: is_up(link))
        received = asked(link, router)
    authorizer = Authorizer()
    assert received.user_id is None
    assert authorizer.is_allowed(None)
    assert authorizer.speaks_for(None, "w7")
    assert (authorizer.name_of(None), authorizer.keyring) == (None, None)


def test_what_goes_over_the_wire_cannot_be_read(context, tcp, tmp_path):
    message = encode(AskStatus(request=1))
    assert message in _overheard(context, tcp, None)  # else this test would prove nothing
    folder = key_folder(tmp_path / "keys", "w1", "w2")
    heard = _overheard(context, f"tcp://127.0.0.1:{free_ports(1)[0]}", folder)
    assert message not in heard
    assert len(heard) > len(message)


def _overheard(context, endpoint, folder):
    """All bytes that a client sends to a ROUTER through a relay."""
    heard = bytearray()
    server = int(endpoint.rpartition(":")[2])
    with contextlib.ExitStack() as stack:
        if folder is None:
            router = stack.enter_context(serving_socket(context, endpoint))
        else:
            router = stack.enter_context(guarded(context, folder, "w1", endpoint)).router
        relay = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        where = f"tcp://127.0.0.1:{relay.getsockname()[1]}"
        keyring = None if folder is None else Keyring(folder, "w2")
        link = stack.enter_context(linked(context, where, keyring))
        near = stack.enter_context(relay.accept()[0])
        far = stack.enter_context(socket.create_connection(("127.0.0.1", server)))
        threads = [
            threading.Thread(target=_relay, args=(near, far, heard)),
            threading.Thread(target=_relay, args=(far, near, bytearray())),
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: is_up(link))
        asked(link, router)
        for end in (near, far):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
    return bytes(heard)


def _relay(source, target, heard):
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            heard += data
            target.sendall(data)


# Not getting through


def test_a_key_that_is_not_allowed_is_refused_counted_and_told(context, endpoint, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "dpwa")
    folder = key_folder(tmp_path / "keys", "w1")
    stranger = key_folder(tmp_path / "other", "w9")
    stranger.allow_key("w1", folder.public_key("w1"))
    with (
        guarded(context, folder, "w1", endpoint) as here,
        linked(context, endpoint, Keyring(stranger, "w9")) as link,
    ):
        assert says(link, "refuses this node")
        assert link.is_useless  # ZeroMQ does not try again
        eventually(lambda: here.authorizer.report()["unknown_key"] == 1)
        with linked(context, endpoint, Keyring(stranger, "w9")) as again:
            assert says(again, "refuses this node")
        eventually(lambda: here.authorizer.report()["unknown_key"] == 2)
        renewed = link.renewed(context)
        try:
            assert renewed.problem == link.problem  # until more is known
            assert renewed.state is LinkState.CONNECTING
        finally:
            renewed.close()
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1  # of the same stranger, only one
    assert stranger.public_key("w9") in warnings[0]


def test_who_expects_another_key_here_is_counted_and_knows_why(context, tcp, tmp_path):
    folder = key_folder(tmp_path / "keys", "w1", "w2", "w3")
    with (
        guarded(context, folder, "w1", tcp) as here,
        linked(context, tcp, Keyring(folder, "w2"), peer="w3") as link,
    ):
        assert says(link, "its key is not the key known here")
        assert link.is_useless
        eventually(lambda: here.authorizer.report()["unknown_key"] >= 1)
        count = here.authorizer.report()["unknown_key"]
        threading.Event().wait(0.3)  # a link that is refused does not try again by itself
        assert here.authorizer.report()["unknown_key"] <= count + 1
        assert here.authorizer.report()["protocol"] == 0


def test_a_client_without_keys_does_not_get_in(context, tcp, tmp_path):
    folder = key_folder(tmp_path / "keys", "w1")
    with guarded(context, folder, "w1", tcp) as here, linked(context, tcp) as link:
        assert says(link, "curve")
        eventually(lambda: here.authorizer.report()["protocol"] >= 1)
        assert here.authorizer.report()["unknown_key"] == 0
        assert not link.send_request(AskStatus(request=1))


def test_a_client_with_keys_does_not_talk_to_a_server_without(context, tcp, tmp_path):
    folder = key_folder(tmp_path / "keys", "w1", "w2")
    with (
        serving_socket(context, tcp) as router,
        linked(context, tcp, Keyring(folder, "w2")) as link,
    ):
        assert says(link, "curve")
        assert not link.send_request(AskStatus(request=1))
        assert receive_from(router, is_named=True) is None


def test_a_peer_whose_key_is_not_known_is_not_even_tried(context, tcp, tmp_path):
    folder = key_folder(tmp_path / "keys", "w2")
    keyring = Keyring(folder, "w2")
    with linked(context, tcp, keyring) as link:
        assert link.state is LinkState.DOWN
        assert link.problem == f"no key of w1 in {folder.allowed}"
        assert not link.is_useless
        folder.allow_key("w1", KeyPair.new().public)
        assert keyring.reload()
        assert link.is_useless  # another one would have a key


def test_nothing_listens_and_a_silent_listener_are_told_apart(context, tcp):
    with linked(context, tcp) as link:
        assert says(link, f"nothing answers at {tcp}")
        assert not link.is_useless  # ZeroMQ goes on
    with linked(context, "tcp://no-such-host.invalid:45000") as link:
        assert says(link, "unknown host tcp://no-such-host.invalid:45000")


def test_where_nobody_keeps_the_gate_nobody_gets_in(context, tcp, tmp_path, monkeypatch):
    monkeypatch.setattr(sockets, "HANDSHAKE_TIMEOUT_MS", 300)
    folder = key_folder(tmp_path / "keys", "w1", "w2")
    authorizer = CurveAuthorizer("w1", Keyring(folder, "w1"))
    with (
        context.socket(zmq.PAIR) as monitor,
        contextlib.ExitStack() as stack,
    ):
        monitor.connect(authorizer.monitor_endpoint)
        stack.enter_context(serving_socket(context, tcp, authorizer))
        link = stack.enter_context(linked(context, tcp, Keyring(folder, "w2")))
        eventually(lambda: problem_of(link))
        assert not link.send_request(AskStatus(request=1))


# Keys that come and go


def test_a_new_key_is_let_in_and_a_removed_one_is_not_heard_any_more(context, tcp, tmp_path):
    folders = key_folders(tmp_path, "w1", "w2")
    keyring = Keyring(folders["w2"], "w2")
    public = folders["w2"].public_key("w2")
    folders["w1"].remove("w2")
    with guarded(context, folders["w1"], "w1", tcp) as here:
        with linked(context, tcp, keyring) as link:
            assert says(link, "refuses this node")
        folders["w1"].allow_key("w2", public)
        eventually(lambda: here.authorizer.is_allowed(public))
        with linked(context, tcp, keyring) as link:
            eventually(lambda: is_up(link))
            assert here.authorizer.is_allowed(asked(link, here.router).user_id)
            folders["w1"].remove("w2")
            eventually(lambda: not here.authorizer.is_allowed(public))
            received = asked(link, here.router)  # the connection is there still
            assert received.user_id == public
            assert not here.authorizer.is_allowed(received.user_id)
            assert not here.authorizer.speaks_for(received.user_id, "w2")
            folders["w1"].allow_key("w2", public)
            eventually(lambda: here.authorizer.is_allowed(public))
        assert len(here.changes) == 3


def test_an_old_key_has_no_standing_once_its_node_has_a_new_one(tmp_path):
    folder = key_folder(tmp_path / "keys", "w1", "w2")
    keyring = Keyring(folder, "w1")
    old, new = folder.public_key("w2"), KeyPair.new().public
    assert keyring.name_of(old) == "w2"
    folder.remove("w2")
    folder.allow_key("w2", new)
    assert keyring.reload()
    assert keyring.name_of(old) is None
    assert keyring.name_of(new) == "w2"
    assert keyring.for_link("w2").theirs == new


def test_a_change_within_the_tick_of_the_one_before_is_seen(tmp_path, monkeypatch):
    """Both leave files that look the same, where the clock of the file system is coarse."""
    monkeypatch.setattr(keyring_module, "_look", lambda folder: ())
    folder = key_folder(tmp_path / "keys", "w1", "w2")
    keyring = Keyring(folder, "w1")
    folder.remove("w2")
    folder.allow_key("w2", KeyPair.new().public)
    assert keyring.reload()
    assert keyring.for_link("w2").theirs == folder.public_key("w2")


def test_a_folder_that_is_gone_lets_nobody_in(tmp_path):
    folder = key_folder(tmp_path / "keys", "w1", "w2")
    keyring = Keyring(folder, "w1")
    public = folder.public_key("w2")
    for path in folder.allowed.iterdir():
        path.unlink()
    folder.allowed.rmdir()
    assert keyring.reload()
    assert keyring.name_of(public) is None


def test_a_folder_that_others_can_write_to_is_not_read_again(tmp_path, caplog):
    folder = key_folder(tmp_path / "keys", "w1", "w2")
    keyring = Keyring(folder, "w1")
    folder.allow_key("w3", KeyPair.new().public)
    folder.allowed.chmod(0o777)
    assert not keyring.reload()
    assert not keyring.reload()
    assert keyring.for_link("w3") is None
    assert keyring.for_link("w2") is not None
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "0777" in told[0]
    folder.allowed.chmod(0o755)
    assert keyring.reload()
    assert keyring.for_link("w3") is not None


IS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")


def _belongs_to_another(path):
    os.chown(path, 4321, 0)


def _may_be_written_by_a_group(path):
    os.chown(path, 0, 4321)
    path.chmod(0o775)


def _may_be_written_by_all(path):
    path.chmod(0o757)


def _lies_behind_a_link_in_a_folder_of_all(path):
    behind = path.with_name("behind")
    path.rename(behind)
    (path.parent / "open").mkdir(mode=0o700)
    (path.parent / "open" / "link").symlink_to(behind)
    (path.parent / "open").chmod(0o777)
    path.symlink_to("open/link")


@pytest.mark.parametrize("which", ["top", "run", "run/keys"])
@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        pytest.param(_belongs_to_another, "and the owner is the user 4321", marks=IS_ROOT),
        pytest.param(_may_be_written_by_a_group, "mode 0775", marks=IS_ROOT),
        (_may_be_written_by_all, "mode 0757"),
        (_lies_behind_a_link_in_a_folder_of_all, "open: mode 0777"),
    ],
)
def test_keys_are_not_read_where_another_user_could_replace_a_folder(
    tmp_path, caplog, which, spoil, told
):
    top = tmp_path / "top"
    folder = key_folder(top / "run" / "keys", "w1", "w2")
    before, of_another = folder.public_key("w2"), key_folder(tmp_path / "another", "w2")
    keyring = Keyring(folder, "w1")
    spoil(top if which == "top" else top / which)
    with pytest.raises(UserError, match=told):
        Keyring(folder, "w1")
    folder.public_file("w2").write_bytes(of_another.public_file("w2").read_bytes())
    assert not keyring.reload()
    assert keyring.for_link("w2").theirs == before
    assert "keys are not read again" in caplog.text
    assert told in caplog.text


@IS_ROOT
def test_a_single_key_of_another_user_is_not_read(tmp_path, caplog):
    folder = key_folder(tmp_path / "keys", "w1", "w2", "w3")
    os.chown(folder.public_file("w2"), 4321, 0)
    keyring = Keyring(folder, "w1")
    assert keyring.for_link("w2") is None
    assert keyring.for_link("w3") is not None
    assert "w2.pub: mode 0644, and the owner is the user 4321" in caplog.text
    os.chown(folder.secret_file("w1"), 4321, 0)
    with pytest.raises(UserError, match=r"w1.key: mode 0600, and the owner is the user 4321"):
        Keyring(folder, "w1")


def test_keys_may_lie_below_sticky_folders_and_behind_links_of_this_user(tmp_path):
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    folder = key_folder(tmp_path / "sticky" / "keys", "w1", "w2")
    (tmp_path / "link").symlink_to("sticky/../sticky/keys")
    assert Keyring(KeyFolder(tmp_path / "link"), "w1").for_link("w2") is not None
    (tmp_path / "round").symlink_to("round")
    with pytest.raises((UserError, OSError)):
        Keyring(KeyFolder(tmp_path / "round"), "w1")
    folder.public_file("w2").unlink()
    os.mkfifo(folder.public_file("w2"), 0o644)  # nobody waits for it
    assert Keyring(folder, "w1").for_link("w2") is None


def test_a_link_to_nothing_in_the_folder_keeps_nobody_out(tmp_path):
    folder = key_folder(tmp_path / "keys", "w1", "w2")
    keyring = Keyring(folder, "w1")
    (folder.allowed / "w3.pub").symlink_to(tmp_path / "nowhere")
    keyring.reload()
    assert keyring.for_link("w2") is not None
    assert keyring.for_link("w3") is None


def test_a_broken_file_keeps_out_its_node_only_and_is_told_once(tmp_path, caplog):
    folder = key_folder(tmp_path / "keys", "w1", "w2", "w3")
    folder.public_file("w2").write_text("nonsense\n")
    keyring = Keyring(folder, "w1")
    keyring.reload()
    keyring.reload()
    assert keyring.for_link("w2") is None
    assert keyring.for_link("w3") is not None
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert str(folder.public_file("w2")) in told[0]


def test_one_key_cannot_have_two_names(tmp_path, caplog):
    folder = key_folder(tmp_path / "keys", "w1", "w2")
    folder.allow_key("w3", folder.public_key("w2"))
    keyring = Keyring(folder, "w1")
    assert keyring.name_of(folder.public_key("w2")) == "w2"
    assert keyring.for_link("w3") is None
    assert "w3 and w2 have the same key" in caplog.text


def test_keys_of_the_configuration_count_too(tmp_path, caplog):
    folder = key_folder(tmp_path / "keys", "w1", "w2")
    told = {"w2": KeyPair.new().public, "w3": KeyPair.new().public}
    keyring = Keyring(folder, "w1", told)
    assert keyring.for_link("w3").theirs == told["w3"]
    assert keyring.for_link("w2").theirs == told["w2"]
    assert keyring.name_of(folder.public_key("w2")) is None
    assert "w2 has one key under `allow` and a different key" in caplog.text


# Files


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o610, 0o606])
def test_a_secret_key_that_others_can_read_is_refused(tmp_path, mode):
    folder = key_folder(tmp_path / "keys", "w1")
    path = folder.secret_file("w1")
    path.chmod(mode)
    with pytest.raises(UserError) as caught:
        Keyring(folder, "w1")
    message = caught.value.text
    assert (
        message
        == f"{path}: mode {mode:04o}, so other users can read this key. Run chmod 600 {path}"
    )


@pytest.mark.parametrize("which", ["path", "allowed"])
@pytest.mark.parametrize("mode", [0o770, 0o757, 0o702])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path, which, mode):
    folder = key_folder(tmp_path / "keys", "w1")
    path = getattr(folder, which)
    path.chmod(mode)
    with pytest.raises(
        UserError, match=re.escape(f"{path}: mode {mode:04o}, so other users can put")
    ):
        Keyring(folder, "w1")


def test_a_public_key_that_others_can_replace_is_refused(tmp_path):
    folder = key_folder(tmp_path / "keys", "w1")
    folder.public_file("w1").chmod(0o664)
    with pytest.raises(UserError, match="chmod go-w"):
        folder.public_key("w1")


def test_files_are_made_so_that_they_are_accepted_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        folder = key_folder(tmp_path / "keys", "w1")
    finally:
        os.umask(before)
    assert folder.secret_file("w1").stat().st_mode & 0o777 == 0o600
    assert Keyring(folder, "w1").own.public == folder.public_key("w1")


def test_keys_are_never_overwritten(tmp_path):
    folder = key_folder(tmp_path / "keys", "w1")
    before = folder.secret_file("w1").read_bytes()
    with pytest.raises(UserError, match="overwrites no keys"):
        folder.create("w1")
    folder.secret_file("w1").rename(folder.secret_file("w2"))
    with pytest.raises(UserError, match="overwrites no keys"):
        folder.create("w1")  # its public key is there still
    with pytest.raises(UserError, match="overwrites no keys"):
        folder.allow_key("w1", KeyPair.new().public)
    assert folder.secret_file("w2").read_bytes() == before
    assert not folder.secret_file("w1").exists()


def test_a_missing_key_is_told_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(UserError, match=re.escape("dpwa keys new w1 --keys")):
        Keyring(KeyFolder(tmp_path), "w1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dpwa-public-key short\n",
        "dpwa-public-key " + "#" * 40 + "\n",  # more than 32 bits
        "something " + "a" * 40 + "\n",
        ("dpwa-public-key " + "a" * 40 + "\n") * 2,
        "\0\xff",
    ],
)
def test_a_file_that_holds_no_key_is_refused(tmp_path, text):
    path = tmp_path / "w1.pub"
    path.write_text(text)
    with pytest.raises(UserError, match="expected one line `dpwa-public-key KEY`"):
        read_public_key(path)


def test_a_secret_key_is_not_taken_for_a_public_one(tmp_path):
    folder = key_folder(tmp_path / "keys", "w1")
    with pytest.raises(UserError, match="got a secret key, which must not be given to others"):
        read_public_key(folder.secret_file("w1"))


def test_z85_is_read_as_zeromq_does(tmp_path):
    from zmq.utils import z85

    for _ in range(20):
        key = KeyPair.new().public
        assert key_bytes(key) == z85.decode(key)
        assert not key.startswith("-")
    assert key_bytes("a" * 39) is None
    assert key_bytes("~" * 40) is None


def test_a_secret_key_shows_nowhere(tmp_path):
    folder = key_folder(tmp_path / "keys", "w1")
    secret = folder.key_pair("w1").secret.reveal().decode()
    assert len(secret) == 40
    shown = [repr(folder.key_pair("w1")), str(folder.key_pair("w1").secret)]
    path = folder.secret_file("w1")
    path.write_text(path.read_text() + "something else\n")
    try:
        folder.key_pair("w1")
    except UserError as error:
        below = error.__traceback__.tb_next  # this function knows the secret
        found = traceback.StackSummary.extract(traceback.walk_tb(below), capture_locals=True)
        assert any("found" in frame.locals for frame in found)
        shown.append("".join(found.format()))
    assert len(shown) == 3
    assert not [text for text in shown if secret in text]
    with pytest.raises(TypeError):
        SecretKey(b"x").__reduce__()


def test_a_libzmq_without_curve_is_told(tmp_path, monkeypatch):
    folder = key_folder(tmp_path / "keys", "w1")
    monkeypatch.setattr(zmq, "has", lambda feature: False)
    with pytest.raises(UserError, match="needs libzmq with CURVE"):
        Keyring(folder, "w1")
    with pytest.raises(UserError, match="needs libzmq with CURVE"):
        KeyPair.new()


# Whoever may connect


@pytest.mark.parametrize(
    ("endpoint", "is_beyond"),
    [
        ("tcp://127.0.0.1:4000", False),
        ("tcp://[::1]:4000", False),
        ("tcp://0.0.0.0:4000", True),
        ("tcp://[::]:4000", True),
        ("tcp://10.0.0.1:4000", True),
        ("ipc:///tmp/x", False),
    ],
)
def test_an_address_that_other_machines_may_reach(endpoint, is_beyond):
    assert is_of_this_machine(endpoint) != is_beyond


@pytest.mark.parametrize("security", ["none", "curve"])
def test_a_node_that_cannot_listen_leaves_nothing_open(security, tmp_path):
    keys = key_folder(tmp_path / "keys", "w1")
    config = config_of(1, security=security, keys=str(keys.path))
    with socket.create_server(("127.0.0.1", config["nodes"][0]["port"])):
        before = open_files()
        for _ in range(3):
            with pytest.raises(AddressError, match="already in use"):
                DpwaConnection("w1", config)
        eventually(lambda: open_files() <= before)


def open_files():
    gc.collect()  # what a node that was not made leaves to be collected
    return descriptors()
