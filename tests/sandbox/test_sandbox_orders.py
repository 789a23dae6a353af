"""Verdicts of the call filter, and the messages on a machine without a sandbox."""

import errno
import struct
from dataclasses import dataclass

import pytest

from skep.deploy.doctor import sandbox_finding
from skep.errors import UserError
from skep.host.checks import CheckResult
from skep.sandbox import runner, seccomp


def decide(code, arch, number, *arguments):
    """Run a filter as the kernel would; return its verdict."""
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


@dataclass(frozen=True)
class Filter:
    """The filter of one architecture, and the numbers of its calls."""

    code: bytes
    calls: seccomp.Architecture

    def decide(self, number, *arguments):
        return decide(self.code, self.calls.audit, number, *arguments)

    def numbers(self, table):
        """Return the numbers of a table's calls, as far as this architecture has them."""
        column = self.calls.column
        return {numbers[column] for numbers in table.values() if len(numbers) > column}


@pytest.fixture(params=seccomp.ARCHITECTURES)
def machine(request):
    """Also the architecture that this does not run on."""
    return request.param


@pytest.fixture
def installed(machine):
    return Filter(seccomp.program(machine), seccomp.ARCHITECTURES[machine])


def test_the_filter_refuses_the_calls_it_lists_and_allows_the_rest(installed):
    refused = installed.numbers(seccomp.REFUSED)
    unknown = installed.numbers(seccomp.UNKNOWN)
    calls = installed.calls
    special = {calls.clone, calls.socket, calls.socketpair, calls.setsockopt}
    assert not refused & special
    expected = dict.fromkeys(range(512), seccomp.ALLOW)
    expected |= dict.fromkeys(unknown, seccomp.ERRNO | errno.ENOSYS)
    expected |= dict.fromkeys(refused, seccomp.ERRNO | errno.EPERM)
    for number in set(range(512)) - special:
        assert installed.decide(number) == expected[number], number


def test_the_filter_allows_sockets_of_unix_and_of_the_internet_only(installed):
    for family in range(60):
        verdict = installed.decide(installed.calls.socket, family)
        if family in (1, 2, 10):
            assert verdict == seccomp.ALLOW
        else:
            assert verdict == seccomp.ERRNO | errno.EAFNOSUPPORT


def test_the_filter_leaves_sizes_of_socket_buffers_as_they_are_without_an_error(installed):
    for option in range(100):
        verdict = installed.decide(installed.calls.setsockopt, 5, 1, option)
        if option in (7, 8, 32, 33):
            assert verdict == seccomp.ERRNO
        else:
            assert verdict == seccomp.ALLOW
        assert installed.decide(installed.calls.setsockopt, 5, 6, option) == seccomp.ALLOW


def test_the_filter_allows_processes_and_threads_but_no_new_namespaces(installed):
    clone = installed.calls.clone
    assert installed.decide(clone, 0x11) == seccomp.ALLOW  # fork
    assert installed.decide(clone, 0x3D0F00) == seccomp.ALLOW  # a thread
    namespaces = (
        0x80,
        0x20000,
        0x2000000,
        0x4000000,
        0x8000000,
        0x10000000,
        0x20000000,
        0x40000000,
    )
    for bit in namespaces:
        assert installed.decide(clone, bit | 0x11) == seccomp.ERRNO | errno.EPERM


def test_the_filter_ends_a_process_that_calls_as_another_architecture(installed):
    other = next(calls for calls in seccomp.ARCHITECTURES.values() if calls is not installed.calls)
    assert decide(installed.code, other.audit, 0) == seccomp.KILL_PROCESS


def test_numbers_of_the_32_bit_variant_of_x86_64_are_unknown():
    installed = Filter(seccomp.program("x86_64"), seccomp.ARCHITECTURES["x86_64"])
    for number in (521, 0x40000000 + 101):
        assert installed.decide(number) == seccomp.ERRNO | errno.ENOSYS


def test_an_architecture_that_is_not_in_the_table_has_no_filter():
    assert not seccomp.program("riscv64")


def test_a_bubblewrap_that_does_not_work_is_found_out_and_said(tmp_path, monkeypatch):
    """Its presence is no proof. Its message is reported, with a remedy."""
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
    monkeypatch.setattr(runner, "APPARMOR_SETTING", switch)
    assert "bwrap-userns-restrict" in runner.remedy()
    assert "kernel.apparmor_restrict_unprivileged_userns=0" in runner.remedy()
