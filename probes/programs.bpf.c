/* SPDX-License-Identifier: Apache-2.0
 *
 * The programs on probed sites. One program serves every kind of site; the attach cookie says what a hit means. That
 * keeps the compiled code small: everything is inlined, and compile time is what an attach waits for.
 */

/* Sends an annotation and, before it, its text. */
static __always_inline void annotate(struct pt_regs *ctx, struct thread *t, u32 tid, u64 now, u64 cookie)
{
    u32 site = RLS_COOKIE_SITE(cookie);
    u8 flags = cookie & RLS_COOKIE_FROM_PYTHON ? RLS_F_PYTHON : 0;
    u32 action = RLS_COOKIE_ACTION(cookie);
    u8 kind = RLS_EV_OP_END;
    u64 arg = 0;

    send_open_operations(t, tid, now);
    if (action == RLS_ACT_PROGRESS) {
        kind = RLS_EV_PROGRESS;
        arg = ctx->di;
    } else if (action != RLS_ACT_OP_END) {
        struct rls_text text = {};
        arg = send_text_at(&text, (void *)ctx->di, 0, RLS_TEXT_NAME, t->pid, tid, now);
        kind = action == RLS_ACT_OP_BEGIN ? RLS_EV_OP_BEGIN : RLS_EV_PHASE;
        if (action == RLS_ACT_METADATA) {
            kind = RLS_EV_METADATA;
            site = send_text_at(&text, (void *)ctx->si, arg, RLS_TEXT_VALUE, t->pid, tid, now);
        }
    }
    send(t, tid, now, kind, site, flags, arg);
    if (action == RLS_ACT_PROGRESS && ctx->si)
        send(t, tid, now, RLS_EV_PROGRESS_TOTAL, site, flags, ctx->si);
}

/* glibc's jmp_buf on x86-64: the stack pointer is its seventh word, xored with the process's guard and rotated. */
#define JMP_BUF_SP 48
#define JMP_BUF_ROTATION 17

/* The stack pointer that longjmp is about to restore; 0 if it cannot be told. */
static __always_inline u64 longjmp_sp(struct pt_regs *ctx, u32 pid)
{
    u64 hidden = 0;
    struct target *target = targets.lookup(&pid);
    if (!target || read_user(&hidden, sizeof(hidden), (void *)(ctx->di + JMP_BUF_SP)))
        return 0;
    return (hidden >> JMP_BUF_ROTATION | hidden << (64 - JMP_BUF_ROTATION)) ^ target->pointer_guard;
}

/* A site was hit. Returns 1 if the return from the probed function need not be seen. */
static __always_inline int entered(struct pt_regs *ctx)
{
    u64 cookie = bpf_get_attach_cookie(ctx);
    u32 site = RLS_COOKIE_SITE(cookie);
    u8 category = RLS_COOKIE_CATEGORY(cookie);
    u32 action = RLS_COOKIE_ACTION(cookie);
    u64 sp = ctx->sp + 8 * RLS_COOKIE_PUSHED(cookie); /* as at the entry */

    if (action >= RLS_ACT_LOADED) {
        u32 pid = current_ids() >> 32;
        u64 *seen = loads.lookup(&pid);
        if (seen)
            __sync_fetch_and_add(seen, action == RLS_ACT_LOADED ? 1ULL : 1ULL << 32);
        return 1;
    }
    u64 now = bpf_ktime_get_ns();

    /* What a first hit says of the thread: who releases the interpreter held it, who acquires it did not. */
    int held = -1;
    if (cookie & RLS_COOKIE_FROM_PYTHON || action == RLS_ACT_GIL_RELEASE || action == RLS_ACT_GIL_UNENSURE)
        held = 1;
    if (action == RLS_ACT_GIL_ACQUIRE || action == RLS_ACT_GIL_ENSURE)
        held = 0;
    u32 tid;
    struct thread *t = current_thread(&tid, held);
    if (!t)
        return 1;
    count(RLS_N_HITS + RLS_COOKIE_GROUP(cookie) * RLS_CLASS_COUNT + RLS_COOKIE_CLASS(cookie), 1);

    /* Calls below this stack pointer are gone. Those at it: at a `ret` it is the returning call itself. A function that
     * catches calls __cxa_begin_catch at the stack pointer at which it called what threw. At an entry it is a tail call
     * or a new call after one whose return was lost, told apart by category: the same one goes on, another replaces it. */
    int told = 0;
    if (t->depth) {
        u8 keep = category;
        if (action != RLS_ACT_CALL)
            keep = RLS_KEEP_NONE;
        else if (cookie & RLS_COOKIE_OPERATION)
            keep = RLS_KEEP_CALLS;
        u64 gone = sp;
        if (action > RLS_ACT_CATCH)
            gone = sp - 1;
        if (action == RLS_ACT_LONGJMP) {
            u64 restored = longjmp_sp(ctx, t->pid);
            if (restored > sp)
                gone = restored - 1;
        }
        drop_frames(t, tid, now, gone, keep, site);
        u8 flags = action == RLS_ACT_EXIT && t->dropped != t->dropped_healed ? 0 : RLS_F_HEALED;
        if (t->dropped && current_category(t) != t->sent) {
            send_change(t, tid, now, RLS_EV_RETURN, t->dropped_site, flags);
            told = !(flags & RLS_F_HEALED);
        }
    }
    u32 depth = t->depth;
    if (depth == 0 && (cookie & RLS_COOKIE_FROM_PYTHON))
        hold(t);

    if (action == RLS_ACT_EXIT || action == RLS_ACT_CATCH || action == RLS_ACT_LONGJMP) {
        if (!told)
            keep_silent(t, site);
        return 1;
    }
    if (action >= RLS_ACT_OP_BEGIN) {
        annotate(ctx, t, tid, now, cookie);
        return 1;
    }

    u8 top = depth ? frame_at(t, depth - 1)->category : RLS_CAT_PYTHON;
    int skip_return = 0;
    int lost_return = 0; /* the return is wanted, but will not be seen */
#ifndef RLS_SESSION
    if (cookie & RLS_COOKIE_RETURNS)
        lost_return = !return_is_probed(t, sp);
#endif
    u8 kind = RLS_EV_CALL;
    if (action == RLS_ACT_CALL) {
        u8 turn = turn_of(site);
        if (turn & 1) {
            keep_silent(t, site);
            return 1;
        }
        u8 operation = (cookie & RLS_COOKIE_OPERATION) != 0;
        int same = cookie & RLS_COOKIE_REENTRY ? top == RLS_CAT_PYTHON : depth && top == category;
        if (operation)
            category = top;
        else if (same)
            skip_return = 1;
#ifdef RLS_SESSION
        if (cookie & RLS_COOKIE_RETURNS && !skip_return && RLS_COOKIE_GROUP(cookie) != RLS_GROUP_CUDA)
            lost_return = !return_is_probed(t, sp);
#endif
        if (!skip_return && (depth >= RLS_MAX_FRAMES || lost_return)) {
            count(RLS_N_NOT_FOLLOWED, 1);
            skip_return = 1;
        }
        if (!skip_return) {
            struct frame *f = frame_at(t, depth);
            f->sp = sp;
            f->site = site;
            f->category = category;
            f->operation = operation;
            f->held = t->held;
            f->turn = turn;
            t->depth = depth + 1;
            if (cookie & RLS_COOKIE_REENTRY)
                hold(t);
            if (operation) {
                send(t, tid, now, RLS_EV_OP_BEGIN, site, 0, site);
                return 0;
            }
        }
    } else if (action == RLS_ACT_GIL_RELEASE) {
        kind = RLS_EV_GIL_RELEASE;
        t->held = 0;
    } else if (action == RLS_ACT_GIL_ACQUIRE || action == RLS_ACT_GIL_ENSURE) {
        /* From here on, although it may have to wait: while it sleeps it does not run Python anyhow. */
        kind = RLS_EV_GIL_ACQUIRE;
        if (action == RLS_ACT_GIL_ENSURE)
            t->saved_held = t->saved_held << 1 | t->held;
        hold(t);
    } else if (action == RLS_ACT_GIL_UNENSURE) {
        kind = RLS_EV_GIL_RELEASE;
        t->held = t->saved_held & 1;
        t->saved_held >>= 1;
    }
    /* A call that released the interpreter on its way came from Python all the same. */
    send_change(t, tid, now, kind, site, kind == RLS_EV_CALL && t->python && !depth ? RLS_F_PYTHON : 0);
    return skip_return;
}

/* A call returned. */
static __always_inline int returned(struct pt_regs *ctx)
{
    u64 cookie = bpf_get_attach_cookie(ctx);
    u64 now = bpf_ktime_get_ns();
    u32 key = (u32)bpf_get_current_pid_tgid();
    struct thread *t = threads.lookup(&key);
    if (!t)
        return 0;
    u32 tid = t->tid;
#ifndef RLS_SESSION
    if (t->returns)
        t->returns--;
#endif
    count(RLS_N_RETURNS + RLS_COOKIE_GROUP(cookie), 1);
    /* The return address has been popped; at the entry it was still there. */
    drop_frames(t, tid, now, ctx->sp - 8, RLS_KEEP_NONE, 0);
    send_change(t, tid, now, RLS_EV_RETURN, t->dropped_site, t->dropped == t->dropped_healed ? RLS_F_HEALED : 0);
    return 0;
}

#ifdef RLS_SESSION
/* Loaded twice: for sessions, and for sites whose return is not wanted, where it only sees entries. A session there
 * would have to say at each entry that it ignores the return; but in a process other than its own the kernel does not
 * run it, and takes that for the wish to see the return. Where C++ exceptions may pass, this ends that process. */
int rls_session(struct pt_regs *ctx)
{
    /* bpf_session_is_return() is a kernel function, which BCC cannot call. On return the instruction pointer is in the
     * caller; at entry it is the site. */
    if (ctx->ip != bpf_get_func_ip(ctx))
        return returned(ctx);
    return entered(ctx) || !(bpf_get_attach_cookie(ctx) & RLS_COOKIE_RETURNS);
}
#else
int rls_entry(struct pt_regs *ctx)
{
    entered(ctx);
    return 0;
}

int rls_return(struct pt_regs *ctx)
{
    return returned(ctx);
}
#endif
