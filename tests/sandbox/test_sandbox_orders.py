"""What the filter says, and what a machine without a sandbox is told."""

import errno
import struct

import pytest

from skep.deploy.doctor import sandbox_finding
from skep.errors import UserError
from skep.host.checks import CheckResult
from skep.sandbox import runner, seccomp


def decide(code, arch, number, *arguments):
    """Runs a filter as the kernel would."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    place = accumulator = 0
    while True:
        operation, jump, skip, value = struct.unpack_from("=HBBI", code, place * 8)
        place += 1
        if operation == seccomp.RETURN:
            return value
        if operation == seccomp.LOAD:
            accumulator = struct.unpack_from("=I", data, value)[0]
        else:
            tests = {seccomp.JEQ: accumulator == value, seccomp.JGE: accumulator >= value}
            place += (
                jump if {**tests, seccomp.JSET: bool(accumulator & value)}[operation] else skip
            )


@pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)
def test_the_filter_refuses_what_it_lists_and_allows_the_rest(machine):
    """Also for the architecture this does not run on."""
    code = seccomp.program(machine)
    known = seccomp.ARCHITECTURES[machine]
    refused = {pair[known.column] for pair in seccomp.REFUSED.values() if len(pair) > known.column}
    unknown = {pair[known.column] for pair in seccomp.UNKNOWN.values()}
    special = {known.clone, known.socket, known.socketpair, known.setsockopt}
    assert not refused & special
    for number in range(512):
        want = seccomp.ALLOW
        if number in refused:
            want = seccomp.ERRNO | errno.EPERM
        elif number in unknown:
            want = seccomp.ERRNO | errno.ENOSYS
        if number not in special:
            assert decide(code, known.audit, number) == want, number
    for family in range(60):
        if family in (1, 2, 10):
            want = seccomp.ALLOW
        else:
            want = seccomp.ERRNO | errno.EAFNOSUPPORT
        assert decide(code, known.audit, known.socket, family) == want
    for option in range(100):  # the sizes of buffers stay as they are, and nobody is told
        if option in (7, 8, 32, 33):
            want = seccomp.ERRNO
        else:
            want = seccomp.ALLOW
        assert decide(code, known.audit, known.setsockopt, 5, 1, option) == want
        assert decide(code, known.audit, known.setsockopt, 5, 6, option) == seccomp.ALLOW
    assert decide(code, known.audit, known.clone, 0x11) == seccomp.ALLOW  # fork
    assert decide(code, known.audit, known.clone, 0x3D0F00) == seccomp.ALLOW  # a thread
    for bit in (
        0x80,
        0x20000,
        0x2000000,
        0x4000000,
        0x8000000,
        0x10000000,
        0x20000000,
        0x40000000,
    ):
        assert decide(code, known.audit, known.clone, bit | 0x11) == seccomp.ERRNO | errno.EPERM
    other = next(one for one in seccomp.ARCHITECTURES.values() if one is not known)
    assert decide(code, other.audit, 0) == seccomp.KILL_PROCESS
    if machine == "x86_64":  # numbers of its 32-bit twin
        assert {decide(code, known.audit, n) for n in (521, 0x40000000 + 101)} == {
            seccomp.ERRNO | errno.ENOSYS
        }
    assert not seccomp.program("riscv64")


def test_a_bubblewrap_that_does_not_work_is_found_out_and_said(tmp_path, monkeypatch):
    """Its presence is no proof. What it said is told, with what to do."""
    fake = tmp_path / "bwrap"
    fake.write_text(
        "#!/bin/sh\necho 'bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted' "
        ">&2\nexit 1\n"
    )
    fake.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(UserError, match="code cannot be run safely here: bubblewrap: ") as caught:
        runner.open_sandbox()
    assert caught.value.exit_code == 2
    assert caught.value.hint


@pytest.mark.parametrize(
    ("program", "hint"),
    [
        ("apt", "install bubblewrap: `sudo apt install bubblewrap`"),
        ("apk", "install the package `bubblewrap`"),
    ],
)
def test_without_bubblewrap_the_remedy_is_to_install_it(tmp_path, monkeypatch, program, hint):
    (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no program `bwrap` on PATH") as caught:
        runner.open_sandbox()
    assert caught.value.hint == hint
    finding = sandbox_finding()
    assert (finding.verdict, finding.detail, finding.hint) == (
        CheckResult.WARNING,
        caught.value.message,
        hint,
    )


def test_ubuntu_s_restriction_is_named_with_both_ways_out(tmp_path, monkeypatch):
    (tmp_path / "bwrap").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    switch = tmp_path / "switch"
    switch.write_text("1\n")
    monkeypatch.setattr(runner, "APPARMOR", switch)
    assert "bwrap-userns-restrict" in runner.remedy()
    assert "kernel.apparmor_restrict_unprivileged_userns=0" in runner.remedy()
