#!/usr/bin/env python3
"""Worlds of real processes on one host: every scheme, launcher and scheduler that rendezvous() understands.

    rendezvous_worlds_test.py PROGRAM [unittest's arguments]      PROGRAM is rendezvous_rank
"""

import os
import signal
import socket
import sys
import unittest

import rendezvous_rank
from bounds import within
from rendezvous_rank import RendezvousTest, free_port

SIZES = (1, 2, 3, 5, 8)


class EnvironmentUrl(RendezvousTest):
    def test_worlds(self):
        for size in SIZES:
            with self.subTest(size=size):
                ranks = self.start_env_world(size, free_port())
                answers = self.assert_world(ranks)
                self.assertEqual({tuple(answer["addresses"]) for answer in answers}, {("127.0.0.1",)})
                self.assertFalse(answers[0]["insecure"], "ranks of one host share a secret that rank 0 made")
                self.finish(ranks)

    def test_no_variables_is_a_world_of_one_that_listens_nowhere(self):
        rank = self.start()
        answer = self.assert_world([rank])[0]
        self.assertEqual(answer["store"], "HashStore")
        descriptors = f"/proc/{rank.pid}/fd"
        links = [os.readlink(os.path.join(descriptors, name)) for name in os.listdir(descriptors)]
        self.assertEqual([link for link in links if link.startswith("socket:")], [])

    def test_some_variables_name_the_missing_ones(self):
        answer = self.start({"RANK": 0, "WORLD_SIZE": 2}).answer()
        self.assert_failure(answer, "missing_variable", "MASTER_ADDR", "MASTER_PORT")
        answer = self.start({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}).answer()
        self.assert_failure(answer, "missing_variable", "RANK", "WORLD_SIZE")

    def test_a_variable_that_does_not_parse_is_named(self):
        answer = self.start({"RANK": "two"}).answer()
        self.assertIn('RANK="two"', answer["message"])

    def test_arguments_beat_the_environment(self):
        port = free_port()
        variables = {"RANK": 7, "WORLD_SIZE": 9, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        self.assert_world([self.start(variables, ["--rank", rank, "--world-size", 2]) for rank in range(2)])

    def test_ipv6(self):
        for address in ("::1", "[::1]"):
            with self.subTest(address=address):
                ranks = self.start_env_world(2, free_port("::1"), MASTER_ADDR=address)
                answers = self.assert_world(ranks)
                self.assertEqual(answers[1]["addresses"], ["::1"])

    def test_localhost(self):
        self.assert_world(self.start_env_world(2, free_port(), MASTER_ADDR="localhost"))

    def test_the_order_of_arrival_does_not_matter(self):
        port = free_port()
        late = self.start_env_world(3, port, ranks=[2, 1])
        first = self.start_env_world(3, port, ranks=[0])
        self.assert_world([first[0], late[1], late[0]])

    def test_a_rank_zero_that_ends_at_once_keeps_nobody_from_joining(self):
        for _ in range(5):
            ranks = self.start_env_world(5, free_port())
            for rank in ranks:
                rank.leave()
            for number, rank in enumerate(ranks):
                self.assertTrue(rank.answer()["ok"], number)
                self.assertEqual(rank.process.wait(within(20)), 0)

    def test_worlds_again_and_again_in_the_same_processes(self):
        ranks = self.start_env_world(3, free_port())
        self.assert_world(ranks)
        for _ in range(3):
            for rank in ranks:
                rank.tell("leave")
                rank.tell("join")
            for rank in ranks:
                self.assertEqual(rank.answer(), {"ok": True})
            self.assert_world(ranks)

    def test_signals_have_no_effect(self):
        self.assert_world(self.start_env_world(5, free_port(), options=["--storm"]))


class TcpUrl(RendezvousTest):
    def test_worlds(self):
        for host in ("127.0.0.1", "[::1]"):
            for size in SIZES:
                with self.subTest(host=host, size=size):
                    port = free_port(host.strip("[]"))
                    self.assert_world([self.start({}, ["--url", f"tcp://{host}:{port}?rank={rank}&world_size={size}"])
                                       for rank in range(size)])

    def test_a_value_given_twice_is_refused(self):
        answer = self.start({}, ["--url", "tcp://127.0.0.1:1?rank=0&world_size=2", "--rank", 0]).answer()
        self.assertIn("rank is given twice", answer["message"])

    def test_a_value_not_given_is_named(self):
        answer = self.start({}, ["--url", "tcp://127.0.0.1:1?rank=0"]).answer()
        self.assert_failure(answer, "missing_variable", "world size", "WORLD_SIZE")

    def test_wrong_urls(self):
        for url in ("tcp://nowhere", "tcp://127.0.0.1:0?rank=0&world_size=2", "udp://x:1", "tcp://h:1?speed=9",
                    "env://there", "file://relative?rank=0&world_size=2"):
            with self.subTest(url=url):
                answer = self.start({"LOCKSTEP_TIMEOUT": 3}, ["--url", url]).answer()
                self.assertEqual((answer["ok"], answer["code"]), (False, "invalid"), answer)


class FileUrl(RendezvousTest):
    def start_world(self, size, path, ranks=None):
        return [self.start({}, ["--url", f"file://{path}?rank={rank}&world_size={size}"])
                for rank in (range(size) if ranks is None else ranks)]

    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.folder, "job")

    def test_worlds_and_the_last_to_leave_removes_the_file(self):
        for size in SIZES:
            with self.subTest(size=size):
                ranks = self.start_world(size, self.path)
                self.assert_world(ranks)
                if size > 1:
                    self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o600)
                self.finish(ranks)
                self.assertFalse(os.path.exists(self.path))

    def test_again_and_again_on_the_same_path_in_the_same_processes(self):
        ranks = self.start_world(3, self.path)
        self.assert_world(ranks)
        for _ in range(5):
            for rank in ranks:
                rank.tell("leave")
                rank.tell("join")
            for rank in ranks:
                self.assertEqual(rank.answer(), {"ok": True})
            self.assert_world(ranks)
        self.finish(ranks)
        self.assertFalse(os.path.exists(self.path))

    def test_a_file_of_killed_ranks_is_stale_and_does_not_disturb(self):
        killed = self.start_world(3, self.path)
        self.assert_world(killed)
        for rank in killed:
            rank.kill()
        self.assertTrue(os.path.exists(self.path))
        fresh = self.start_world(2, self.path)
        self.assert_world(fresh)
        self.finish(fresh)
        self.assertFalse(os.path.exists(self.path))

    def test_a_file_of_ranks_that_were_killed_while_joining_is_stale(self):
        early = [self.start({"LOCKSTEP_LOG": "rendezvous=debug"}, ["--url", f"file://{self.path}?rank={rank}&world_size=3"])
                 for rank in (0, 2)]
        for rank in early:
            rank.wait_for_log("has arrived")
        for rank in early:
            rank.kill()
        self.assert_world(self.start_world(3, self.path))

    def test_a_file_in_which_a_world_lives_is_refused(self):
        world = self.start_world(2, self.path)
        self.assert_world(world)
        answer = self.start_world(2, self.path, ranks=[1])[0].answer()
        self.assert_failure(answer, "duplicate_rank", "Rank 1 is taken", f"pid {world[1].pid}")
        self.assert_talks(world)

    def test_a_file_that_is_something_else_is_refused(self):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write("my thesis\n" * 100)
        answer = self.start_world(2, self.path, ranks=[0])[0].answer()
        self.assertFalse(answer["ok"])
        self.assertIn(self.path, answer["message"])
        with open(self.path, encoding="utf-8") as file:
            self.assertEqual(file.read(), "my thesis\n" * 100, "nothing of it was touched")

    def test_a_folder_that_is_not_there(self):
        answer = self.start_world(2, "/nonexistent/folder/job", ranks=[0])[0].answer()
        self.assertFalse(answer["ok"])
        self.assertIn("/nonexistent/folder/job", answer["message"])

    def test_a_join_that_failed_leaves_no_file(self):
        url = f"file://{self.path}?rank=%d&world_size=%d"
        for name, ranks, failure, variables in (
                ("unequal worlds", ((0, 2), (1, 3)), "world_size_mismatch", {}),
                ("unequal worlds, all came", ((0, 3), (1, 3), (2, 4)), "world_size_mismatch", {}),
                ("a missing rank", ((0, 3), (2, 3)), "missing_ranks", {"LOCKSTEP_TIMEOUT": "1"}),
                ("nobody else", ((1, 2),), "missing_ranks", {"LOCKSTEP_TIMEOUT": "0.5"}),
                ("a rank beyond its world", ((7, 2),), "world_size_mismatch", {})):
            with self.subTest(name):
                started = [self.start(variables, ["--url", url % rank]) for rank in ranks]
                for rank in started:
                    self.assert_failure(rank.answer(), failure)
                self.assertEqual(os.listdir(self.folder), [])
                self.assert_world(world := self.start_world(2, self.path))
                self.finish(world)

    def test_two_jobs_in_one_file_do_not_meet_and_the_last_removes_it(self):
        worlds = []
        for job in ("a", "b"):
            ranks = [self.start({"LOCKSTEP_JOB_ID": job}, ["--url", f"file://{self.path}?rank={r}&world_size=2"])
                     for r in range(2)]
            self.assert_world(ranks)
            worlds.append(ranks)
        self.finish(worlds[0])
        self.assertTrue(os.path.exists(self.path))
        self.assert_talks(worlds[1])
        self.finish(worlds[1])
        self.assertFalse(os.path.exists(self.path))


class Launchers(RendezvousTest):
    def test_our_launcher_passes_the_listening_socket_and_the_secret(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            secret = os.memfd_create("secret")
            self.addCleanup(os.close, secret)
            os.write(secret, os.urandom(32))
            port = listener.getsockname()[1]
            common = {"WORLD_SIZE": 3, "LOCAL_WORLD_SIZE": 3, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1,
                      "LOCKSTEP_STORE": f"127.0.0.1:{port}", "LOCKSTEP_JOB_ID": "j", "LOCKSTEP_EPOCH": 2,
                      "LOCKSTEP_SECRET_FD": secret}
            ranks = []
            for rank in range(3):
                own = {"RANK": rank, "LOCAL_RANK": rank}
                if rank == 0:
                    own["LOCKSTEP_STORE_FD"] = listener.fileno()
                descriptors = [secret] + ([listener.fileno()] if rank == 0 else [])
                ranks.append(self.start(common | own, pass_fds=descriptors))
            answers = self.assert_world(ranks)
            self.assertEqual({(answer["job_id"], answer["epoch"]) for answer in answers}, {("j", 2)})
            # The socket is still there for the next time.
            for rank in ranks:
                rank.tell("leave")
                rank.tell("join")
            for rank in ranks:
                self.assertEqual(rank.answer(), {"ok": True})
            self.assert_world(ranks)

    def test_a_store_fd_that_is_no_socket_is_named(self):
        answer = self.start({"RANK": 0, "WORLD_SIZE": 2, "LOCKSTEP_STORE": "127.0.0.1:1", "LOCKSTEP_STORE_FD": 0}).answer()
        self.assertIn("LOCKSTEP_STORE_FD=0", answer["message"])

    def test_under_torchrun_the_agents_port_is_never_touched(self):
        with socket.create_server(("127.0.0.1", 0)) as agent:
            agent.setblocking(False)
            port = agent.getsockname()[1]
            ranks = self.start_env_world(
                2, port, MASTER_ADDR="localhost", LOCAL_WORLD_SIZE=2, TORCHELASTIC_RUN_ID="none",
                TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT=1, LOCKSTEP_PORT=free_port())
            answers = self.assert_world(ranks)
            self.assertEqual(answers[0]["epoch"], 1)
            with self.assertRaises(BlockingIOError):
                agent.accept()

    def test_under_torchrun_the_store_is_one_port_further(self):
        agent, port = self.port_with_a_free_neighbour()
        with agent:
            self.assert_world(self.start_env_world(2, port, TORCHELASTIC_RUN_ID="none",
                                                   TORCHELASTIC_USE_AGENT_STORE="True"))

    def test_slurm_on_one_node(self):
        port = free_port()
        self.assert_world([self.start({"SLURM_PROCID": rank, "SLURM_NTASKS": 3, "SLURM_LOCALID": rank,
                                       "SLURM_JOB_NODELIST": "gpu[07]", "SLURM_JOB_ID": 77, "SLURM_STEP_ID": 0,
                                       "LOCKSTEP_PORT": port}) for rank in range(3)])

    def test_lines_of_the_log_name_the_rank_that_a_scheduler_or_a_url_gives(self):
        port = free_port()
        slurm = {"SLURM_NTASKS": 2, "SLURM_JOB_NODELIST": "gpu[07]", "SLURM_JOB_ID": 77, "LOCKSTEP_PORT": port}
        ranks = [self.start({"SLURM_PROCID": rank, "LOCKSTEP_LOG": "rendezvous=debug", **slurm}) for rank in range(2)]
        for number, rank in enumerate(ranks):
            rank.wait_for_log(f"[rank {number}] rendezvous: ", "has arrived")
        self.finish(ranks)
        url = f"tcp://127.0.0.1:{free_port()}?world_size=2&rank="
        ranks = [self.start({"LOCKSTEP_LOG": "rendezvous=debug"}, ["--url", f"{url}{rank}"]) for rank in range(2)]
        for number, rank in enumerate(ranks):
            rank.wait_for_log(f"[rank {number}] rendezvous: ", "has arrived")
        self.finish(ranks)

    def test_slurm_without_srun_says_so(self):
        answer = self.start({"SLURM_PROCID": 0, "SLURM_NTASKS": 2, "SLURM_JOB_NODELIST": "gpu7",
                             "LOCKSTEP_PORT": free_port(), "LOCKSTEP_TIMEOUT": 3}).answer()
        self.assert_failure(answer, "missing_ranks", "rank 1 of 2 missing", "srun")

    def test_open_mpi_on_one_host(self):
        port = free_port()
        self.assert_world([self.start({"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": 2,
                                       "OMPI_COMM_WORLD_LOCAL_RANK": rank, "OMPI_COMM_WORLD_LOCAL_SIZE": 2,
                                       "PMIX_NAMESPACE": "j@1", "LOCKSTEP_PORT": port}) for rank in range(2)])

    def test_mpich_on_one_host(self):
        port = free_port()
        self.assert_world([self.start({"PMI_RANK": rank, "PMI_SIZE": 2, "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": 2,
                                       "MASTER_PORT": port}) for rank in range(2)])

    def test_a_kubernetes_indexed_job(self):
        port = free_port()
        self.assert_world([self.start({"JOB_COMPLETION_INDEX": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1",
                                       "MASTER_PORT": port}) for rank in range(2)])

    def port_with_a_free_neighbour(self):
        for _ in range(50):
            port = free_port()
            agent = socket.create_server(("127.0.0.1", port))
            try:
                with socket.create_server(("127.0.0.1", port + 1)):
                    return agent, port
            except OSError:
                agent.close()
        self.fail("no two ports beside each other are free")


class Lifetime(RendezvousTest):
    def test_a_second_join_of_the_same_rank_is_refused_and_the_first_lives_on(self):
        ranks = self.start_env_world(2, free_port())
        self.assert_world(ranks)
        for rank in ranks:
            self.assert_failure(rank.ask("second"), "duplicate_rank", "is taken", f"pid {rank.pid}")
        self.assert_talks(ranks)

    def test_a_forked_child_gets_an_error_and_disturbs_nobody(self):
        path = os.path.join(self.folder, "job")
        worlds = {"tcp": self.start_env_world(2, free_port()),
                  "file": [self.start({}, ["--url", f"file://{path}?rank={r}&world_size=2"]) for r in range(2)]}
        for scheme, ranks in worlds.items():
            with self.subTest(scheme=scheme):
                self.assert_world(ranks)
                for rank in ranks:
                    answer = rank.ask("fork")
                    self.assertTrue(answer["ok"], answer)
                    self.assert_failure(answer["child"], "forked")
                self.assert_talks(ranks)


if __name__ == "__main__":
    rendezvous_rank.PROGRAM = os.path.abspath(sys.argv.pop(1))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    unittest.main()
