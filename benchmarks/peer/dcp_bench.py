#!/usr/bin/env python3
"""Peer benchmark: PyTorch DCP on the sharded model and AdamW state of fsdp2_bench.py.

    torchrun --nproc_per_node 2 dcp_bench.py --preset 124m --dir ckpt

Rank 0 prints one JSON line: bytes, seconds and GB/s of save and of load, for async_save how
long the call holds training up and how much longer steps take until the save has ended, and
the memory of the process; beside the raw write and read speed of the same disk in the same
run, before and after. What is written is synced and dropped from memory before it is read.
"""
import argparse, json, os, shutil, statistics, time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from fsdp2_bench import PRESETS, Llama

PIECE = 1 << 24


def drop_pages(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def status_mib(name):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(name)) / 1024


def take_peak_mib():
    peak = status_mib("VmHWM:")
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")  # the peak begins anew
    return peak


def sharded_model(preset, num_layers, mesh, dev):
    dim, layers, heads, kv, ffn, vocab, seq, _ = PRESETS[preset]
    layers = num_layers or layers
    with torch.device("meta"):
        model = Llama(dim, layers, heads, kv, ffn, vocab, seq)
    for l in model.layers:
        fully_shard(l, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=dev)
    model.init_weights()
    return model


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--preset", default="tiny", choices=PRESETS)
    p.add_argument("--layers", type=int, default=0, help="0: the preset's")
    p.add_argument("--dir", default="ckpt")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--async-saves", type=int, default=3)
    p.add_argument("--raw-gb", type=float, default=0, help="0: as the state")
    p.add_argument("--train-tokens", type=int, default=0,
                   help="of each rank in a step beside the saves; 0: matrices on the host")
    a = p.parse_args()
    cuda = torch.cuda.is_available()
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if cuda:
        torch.cuda.set_device(local)
    dist.init_process_group("cuda:nccl,cpu:gloo" if cuda else "gloo")
    world = dist.get_world_size()
    dev = torch.device("cuda", local) if cuda else torch.device("cpu")
    model = sharded_model(a.preset, a.layers, init_device_mesh(dev.type, (world,)), dev)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for prm in model.parameters():
        prm.grad = torch.zeros_like(prm)
    opt.step(); opt.zero_grad()

    def state():
        m, o = get_state_dict(model, opt)
        return {"model": m, "optim": o}

    n_bytes = sum(p.numel() for p in model.parameters()) * 12
    raw_bytes = int(a.raw_gb * 1e9) or n_bytes
    sync = torch.cuda.synchronize if cuda else (lambda: None)

    def timed(fn):
        sync(); dist.barrier(); t = time.perf_counter()
        r = fn()
        sync(); dist.barrier()
        return time.perf_counter() - t, r

    raw_write, raw_read, saves, loads, load_peaks = [], [], [], [], []
    piece = bytearray(os.urandom(PIECE))

    def measure_disk():
        path, mine = f"{a.dir}/raw{rank}", raw_bytes // world
        for _ in range(a.rounds):
            dist.barrier(); t = time.perf_counter()
            with open(path, "wb", buffering=0) as f:
                for at in range(0, mine, PIECE):
                    f.write(memoryview(piece)[:min(PIECE, mine - at)])
                os.fsync(f.fileno())
            raw_write.append(time.perf_counter() - t)
            drop_pages(path)
            t = time.perf_counter()
            with open(path, "rb", buffering=0) as f:
                while f.readinto(piece):
                    pass
            raw_read.append(time.perf_counter() - t)
            os.remove(path)

    if rank == 0:
        shutil.rmtree(a.dir, ignore_errors=True); os.makedirs(a.dir)
    dist.barrier()
    measure_disk()
    for _ in range(a.rounds):
        if rank == 0:
            shutil.rmtree(f"{a.dir}/sync", ignore_errors=True)
        saves.append(timed(lambda: dcp.save(state(), checkpoint_id=f"{a.dir}/sync"))[0])
    for _ in range(a.rounds):
        if rank == 0:
            for name in os.listdir(f"{a.dir}/sync"):
                drop_pages(f"{a.dir}/sync/{name}")
        dist.barrier(); take_peak_mib(); before = status_mib("VmRSS:")
        loads.append(timed(lambda: dcp.load(state(), checkpoint_id=f"{a.dir}/sync"))[0])
        load_peaks.append(take_peak_mib() - before)
    if rank == 0:
        shutil.rmtree(f"{a.dir}/sync", ignore_errors=True)

    work = torch.rand(768, 768) / 32
    tokens = torch.zeros(1, a.train_tokens, dtype=torch.long, device=dev)
    saves_group = dist.new_group(backend="gloo")  # a thread's: steps have the other

    def train():
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        opt.step(); opt.zero_grad()

    def multiply():  # in place of a training step
        nonlocal work
        for _ in range(4):
            work = torch.mm(work, work).tanh_()
        work.sum().item()

    def step(saving):  # after it all ranks know whether one of them still saves
        train() if a.train_tokens else multiply()
        flag = torch.tensor([int(saving)], dtype=torch.int32, device=dev)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return flag.item() != 0

    times = []
    for _ in range(20):
        t = time.perf_counter()
        step(False)
        times.append(time.perf_counter() - t)
    median_step = statistics.median(times)
    requests, stalls, resident = [], [], []
    for _ in range(a.async_saves):
        sync(); dist.barrier(); begin = time.perf_counter()
        fut = dcp.async_save(state(), checkpoint_id=f"{a.dir}/async", process_group=saves_group)
        requests.append(time.perf_counter() - begin)
        steps = 1
        while step(not fut.done()):
            steps += 1
        fut.result()
        stalls.append(time.perf_counter() - begin - steps * median_step)
        resident.append(status_mib("VmRSS:"))
        dist.barrier()
    measure_disk()
    dist.barrier()
    if rank == 0:
        gb, median = n_bytes / 1e9, statistics.median
        settled = min(2, len(resident) - 1)
        raw_write, raw_read = (raw_bytes / 1e9 / median(times) for times in (raw_write, raw_read))
        save, load = gb / median(saves), gb / median(loads)
        r3 = lambda values: [round(v, 3) for v in values]
        out = dict(peer="pytorch-dcp", torch=torch.__version__, preset=a.preset,
              layers=len(model.layers), world=world, gb=round(gb, 3),
              raw_gb=round(raw_bytes / 1e9, 3),
              raw_write_gbps=round(raw_write, 3), raw_read_gbps=round(raw_read, 3),
              save_s=r3(saves), save_gbps=round(save, 3), save_of_raw=round(save / raw_write, 3),
              load_s=r3(loads), load_gbps=round(load, 3), load_of_raw=round(load / raw_read, 3),
              load_peak_mib=round(max(load_peaks), 3),
              train_tokens=a.train_tokens, step_s=round(median_step, 3), async_request_s=r3(requests),
              async_stall_s=r3(stalls), host_mib=round(resident[settled], 3),
              host_growth_mib=round(resident[-1] - resident[settled], 3))
        print(json.dumps(out), flush=True)
        shutil.rmtree(a.dir, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
