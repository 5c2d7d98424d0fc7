/* The handoff of KV pages, once more, for Spin: a second opinion beside internal/handoff/model, written apart from it, and the place
 * where liveness is looked at (every attempt ends, every page comes back, under weak fairness).
 *
 * Decode's pool has NP pages; NR attempts need K pages each. Each attempt has a prefill, a link that keeps order, and a reader at
 * decode. The receiver gates: a frame that no live grant names is dropped; one that it lets in is pinned, copied, unpinned. Nobody
 * tells decode when a sender is quiet: it fences its own grant and frees, while frames are still on the link.
 *
 * Guards, each a define:  GATE  PIN  FENCE  MAC  COUNT  VERDICT  TAG  ZERO
 * Faults, each a define:  SHORT (prefill says too soon that it is done)  TORN (bytes that the MAC is not of)
 *                         REJECT (prefill refuses, ships what it has, and its statement says so)  CRASH (prefill dies)
 *                         LOST (the link is lost; what was on it is gone)
 * Properties:  no byte is read that another attempt, or nobody, wrote whole;  one verdict an attempt;  no reply where prefill
 *              refused;  no copy into a page that is not the attempt's;  no deadlock;  LIVE: all end, all pages free.             */
#ifndef NP
#define NP 2
#endif
#ifndef NR
#define NR 2
#endif
#ifndef K
#define K 2
#endif
#define OLD  9                  /* of whoever was here before */
#define BAD  20                 /* torn: attempt + BAD */
#define NONE 255

mtype = { page, torn, done, refused };          /* frames */
mtype = { waiting, granted, reading, over, settled };

typedef Tags { byte at[K] };
byte owner[NP];                                 /* 0 free, attempt + 1 */
byte gen[NP], data[NP], pins[NP];
byte nfree = NP;
Tags pg[NR], pgen[NR];                          /* the grant */
mtype state[NR] = waiting;
bool fenced[NR], no[NR], gone[NR];              /* no: prefill refused; gone: prefill sends nothing any more */
byte verdict[NR];                               /* 0 none, 1 served, 2 refused */
byte written[NR], spent[NR];
byte into[NR] = NONE;                           /* the page that the reader is copying into */
chan link[NR] = [K+1] of { mtype, byte };       /* kind, ordinal or count */

inline end(r, v) {
  assert(verdict[r] == 0);
  verdict[r] = v;
#ifdef VERDICTS
  assert(!(v == 1 && no[r]));
#endif
#ifdef FENCE
  fenced[r] = true;
#endif
  state[r] = over
}

/* Decode: reserve, grant, take the statement, read every page, serve; an abort may come at any time. */
proctype Decode(byte r) {
  byte i, j, n; bool whole;
  atomic {
    nfree >= K ->
    i = 0; j = 0;
    do
    :: j < K ->
       if
       :: owner[i] == 0 -> owner[i] = r+1; gen[i]++; pg[r].at[j] = i; pgen[r].at[j] = gen[i]; j++; nfree--
       :: else
       fi; i++
    :: else -> break
    od; i = 0; j = 0;
    state[r] = granted
  }
  do
  :: atomic { state[r] == granted -> end(r, 2) }                        /* an abort, a deadline, a lost peer */
  :: atomic { state[r] == reading && i < K ->                           /* one page of a step */
#ifdef TAG
       if
       :: owner[pg[r].at[i]] != r+1 || gen[pg[r].at[i]] != pgen[r].at[i] -> end(r, 2)
       :: else ->
#endif
       assert(data[pg[r].at[i]] == r+1);
       i++
#ifdef TAG
       fi
#endif
     }
  :: atomic { state[r] == reading -> end(r, 2) }
  :: atomic { state[r] == reading && i == K -> i = 0; end(r, 1) }
  :: state[r] == over -> break
  od;
  /* The pages come back when no copy has a pin on them. */
  atomic {
#ifdef PIN
    (pins[pg[r].at[0]] == 0 && pins[pg[r].at[K-1]] == 0) ->
#endif
    i = 0;
    do
    :: i < K -> owner[pg[r].at[i]] = 0; nfree++;
#ifdef ZERO
       data[pg[r].at[i]] = 0;
#endif
       i++
    :: else -> break
    od; i = 0;
    state[r] = settled
  }
}

/* Decode's reader of the attempt's link. The gate is asked, then the page is pinned and copied: three steps, and others go between. */
proctype Reader(byte r) {
  byte x; byte k; mtype kind;
endtake: do
  :: atomic { link[r]?[kind,k] -> link[r]?kind,k ->
       if
       :: kind == page || kind == torn ->
          x = pg[r].at[k];
#ifdef GATE
          if
          :: state[r] == granted && !fenced[r] && !(spent[r] >> k & 1) -> skip
          :: else -> k = 0; x = 0; goto endtake                         /* refused */
          fi;
#endif
          spent[r] = spent[r] | (1 << k);
          into[r] = x
       :: kind == refused || kind == done ->
          if
          :: state[r] == granted ->
             if
#ifdef VERDICT
             :: kind == refused -> end(r, 2)
#endif
#ifdef COUNT
             :: k != K || written[r] != K -> end(r, 2)
#endif
             :: else -> state[r] = reading
             fi
          :: else
          fi;
          k = 0; goto endtake
       fi }
     /* between the machine's yes and the lease's: what the fence is for */
     atomic {
#ifdef GATE
       if
       :: fenced[r] -> into[r] = NONE; x = 0; k = 0; goto endtake
       :: else
       fi;
#endif
#ifdef PIN
       pins[x]++;
#endif
       assert(owner[x] == r+1)                                          /* no copy into a page that is not the attempt's */
     }
     atomic {
       assert(owner[x] == r+1);
       if
#ifdef MAC
       :: kind == torn -> data[x] = 0; if :: state[r] == granted -> end(r, 2) :: else fi
#else
       :: kind == torn -> data[x] = r+1+BAD; written[r]++
#endif
       :: kind == page -> data[x] = r+1; written[r]++
       fi;
#if defined(PIN) && defined(FORGET)
       if :: kind == torn -> skip :: else -> pins[x]-- fi;              /* a bug on purpose: liveness must see it */
#elif defined(PIN)
       pins[x]--;
#endif
       into[r] = NONE; x = 0; k = 0
     }
#ifdef LOST
  :: atomic { state[r] == granted && !gone[r] -> gone[r] = true;
       do :: link[r]?_,_ :: empty(link[r]) -> break od;
       end(r, 2) }
#endif
  od
}

/* Prefill: pages in order, then the statement. */
proctype Prefill(byte r) {
  byte k;
  state[r] != waiting;
  do
  :: atomic { k < K && !gone[r] && nfull(link[r]) -> link[r]!page,k; k++ }
#ifdef TORN
  :: atomic { k < K && !gone[r] && nfull(link[r]) -> link[r]!torn,k; k++ }
#endif
#ifdef SHORT
  :: atomic { k > 0 && k < K && !gone[r] && nfull(link[r]) -> link[r]!done,k; break }
#endif
#ifdef REJECT
  :: atomic { k > 0 && !gone[r] && nfull(link[r]) -> no[r] = true; link[r]!refused,k; break }
#endif
#ifdef CRASH
  :: break
#endif
  :: atomic { k == K && !gone[r] && nfull(link[r]) -> link[r]!done,k; break }
  :: atomic { gone[r] -> break }
  :: atomic { state[r] == over || state[r] == settled -> break }        /* it heard the abort */
  od
}

init {
  byte i;
  atomic {
#ifndef ZERO
    do :: i < NP -> data[i] = OLD; i++ :: else -> break od; i = 0;
#endif
    do :: i < NR -> run Decode(i); run Reader(i); run Prefill(i); i++ :: else -> break od
  }
}

#ifdef LIVE
#if NR == 3
ltl live { <> (state[0] == settled && state[1] == settled && state[2] == settled && nfree == NP) }
#else
ltl live { <> (state[0] == settled && state[1] == settled && nfree == NP) }
#endif
#endif
