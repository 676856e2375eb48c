/* SPDX-License-Identifier: Apache-2.0
 *
 * The texts of annotations (userspace/rlscope_markers.h): each is sent once, events carry its hash.
 */

/* Where a thread's record of open operations lies in its process; known for threads that were there at attach. */
BPF_TABLE("hash", u32, u64, marker_records, RLS_MAX_THREADS);
BPF_TABLE("lru_hash", u64, u8, seen_texts, 16384);

#define RLS_TEXT_WORDS (RLS_TEXT_MAX / 8)

/* Reads the text at `address` into the scratch record and returns its 64-bit hash, 0 if it cannot be read. */
static __always_inline u64 read_text(struct rls_text *text, const void *address, u64 seed)
{
    long length = read_user_str(text->text, RLS_TEXT_MAX, address);
    if (length <= 0)
        return 0;
    text->length = length - 1;
    u64 *words = (u64 *)text->text;
    u64 hash = 0x9e3779b97f4a7c15ULL ^ seed;
    u32 used = (length + 7) / 8;
    /* The kernel clears the rest of the last word; words after it may hold old bytes and are not used. */
#pragma clang loop unroll(disable)
    for (int i = 0; i < RLS_TEXT_WORDS; i++) {
        if (i >= used)
            break;
        hash = (hash ^ words[i]) * 0xff51afd7ed558ccdULL;
        hash ^= hash >> 32;
    }
    return hash ? hash : 1;
}

static __always_inline void send_text(struct rls_text *text, u64 key, u32 kind, u32 pid, u32 tid, u64 now)
{
    u64 id = key ^ ((u64)kind << 56);
    if (seen_texts.lookup(&id))
        return;
    text->time_ns = now;
    text->key = key;
    text->kind = kind;
    text->pid = pid;
    text->tid = tid;
    if (texts.ringbuf_output(text, sizeof(*text), BPF_RB_NO_WAKEUP)) {
        count(RLS_N_LOST_TEXTS, 1);
        return;
    }
    u8 one = 1;
    seen_texts.update(&id, &one);
    /* Names of 127 bytes may have been longer. */
    if (text->length >= RLS_TEXT_MAX - 1)
        count(RLS_N_CUT_NAMES, 1);
}

/*
 * Sends the text at `address`; returns its key. Of one that has not been touched yet, or has been reclaimed, the address is
 * sent, which the profiler can read: programs cannot wait until it is in memory.
 */
static __always_inline u64 send_text_at(struct rls_text *text, const void *address, u64 seed, u32 kind, u32 pid, u32 tid,
                                        u64 now)
{
    u64 key = read_text(text, address, seed);
    if (!key) {
        u64 place = (u64)address;
        *(u64 *)text->text = place;
        text->length = sizeof(place);
        key = (place ^ (u64)pid << 47 ^ seed) * 0xff51afd7ed558ccdULL;
        key ^= key >> 32;
        key |= 1; /* also of its low half none is 0 */
        kind += RLS_TEXT_NAME_AT - RLS_TEXT_NAME;
    }
    if (kind == RLS_TEXT_VALUE || kind == RLS_TEXT_VALUE_AT)
        key = (u32)key; /* as much as an event has room for */
    send_text(text, key, kind, pid, tid, now);
    return key;
}

/* A thread that was there at attach may have operations open: its record, as it is before this call, says which. */
static __always_inline void send_open_operations(struct thread *t, u32 tid, u64 now)
{
    if (t->ops_known)
        return;
    t->ops_known = 1;
    u64 *record = marker_records.lookup(&tid);
    if (!record)
        return;
    struct rls_text text = {};
    u32 depth = 0;
    if (read_user(&depth, sizeof(depth), (void *)(*record + MARKER_DEPTH_OFFSET)))
        return;
    if (read_user(text.text, RLS_OPEN_OPS_MAX * 8, (void *)(*record + MARKER_NAMES_OFFSET)))
        return;
    text.time_ns = now;
    text.key = depth;
    text.kind = RLS_TEXT_OPEN_OPS;
    text.pid = t->pid;
    text.tid = tid;
    text.length = RLS_OPEN_OPS_MAX * 8;
    if (texts.ringbuf_output(&text, sizeof(text), BPF_RB_NO_WAKEUP))
        count(RLS_N_LOST_TEXTS, 1);
}
