/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpuid_tiles.c: lets oneDNN, and with it PyTorch, use AMX in a virtual machine that has AMX but hides CPUID's leaves 1D
 * and 1E, the sizes of its tiles. oneDNN then configures tiles of size 0 and dies of an illegal instruction.
 *
 *     cc -shared -fPIC -O2 cpuid_tiles.c -o cpuid_tiles.so && LD_PRELOAD=./cpuid_tiles.so python …
 *
 * Linux lets a process trap its own CPUID instructions. The handler executes them and adds the two leaves, which are the
 * same for every processor with AMX so far. forward_peers.py compiles and loads this by itself.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { SET_CPUID = 0x1012, TILES = 0x1d, MULTIPLIER = 0x1e, AMX_TILE = 1 << 24 };

static void answer(unsigned leaf, unsigned sub, unsigned r[4])
{
	__cpuid_count(leaf, sub, r[0], r[1], r[2], r[3]);
	if (leaf == 0 && r[0] < MULTIPLIER)
		r[0] = MULTIPLIER;
	if (leaf == TILES || leaf == MULTIPLIER)
		r[0] = r[1] = r[2] = r[3] = 0;
	if (leaf == TILES && sub == 0)
		r[0] = 1; /* palettes */
	if (leaf == TILES && sub == 1) {
		r[0] = 1024u << 16 | 8192; /* bytes of a tile and of all */
		r[1] = 8u << 16 | 64;      /* tiles, bytes of a row */
		r[2] = 16;                 /* rows */
	}
	if (leaf == MULTIPLIER && sub == 0)
		r[1] = 64u << 8 | 16; /* bytes and rows that a product takes */
}

static void trapped(int number, siginfo_t *info, void *context)
{
	(void)info;
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	const unsigned char *code = (const unsigned char *)registers[REG_RIP];
	unsigned r[4];
	if (code[0] != 0x0f || code[1] != 0xa2) { /* another fault: it happens again, and ends the process */
		signal(number, SIG_DFL);
		return;
	}
	syscall(SYS_arch_prctl, SET_CPUID, 1);
	answer((unsigned)registers[REG_RAX], (unsigned)registers[REG_RCX], r);
	syscall(SYS_arch_prctl, SET_CPUID, 0);
	registers[REG_RAX] = r[0];
	registers[REG_RBX] = r[1];
	registers[REG_RCX] = r[2];
	registers[REG_RDX] = r[3];
	registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void)
{
	unsigned a, b, c, d;
	if (__get_cpuid_max(0, NULL) >= TILES || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & AMX_TILE))
		return;
	struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO | SA_NODEFER};
	sigaction(SIGSEGV, &action, NULL);
	syscall(SYS_arch_prctl, SET_CPUID, 0);
}
