//! Whatever is encoded decodes to the same value, for every message and every value within the limits.
//!
//! The generators leak what the messages borrow: a test's life is short, and a strategy of `'static` messages
//! reads like the messages themselves.

use proptest::collection::vec;
use proptest::prelude::*;

use super::message::{Message, with_frame};
use crate::hello::{Hello, HelloReply, PeerIdentity, Role};
use crate::limit::*;
use crate::peer::*;
use crate::reply::*;
use crate::request::{Acquire, Mode, Mutation, Request, SessionProof, kind};
use crate::*;

fn leak<T>(items: Vec<T>) -> &'static [T] {
    Vec::leak(items)
}

fn rows<T: Row<'static> + 'static>(
    row: impl Strategy<Value = T>,
    limit: usize,
) -> impl Strategy<Value = Rows<'static, T>> {
    // Mostly short lists; the longest ones have tests of their own.
    vec(row, 0..=limit.min(20)).prop_map(|rows| Rows::Slice(leak(rows)))
}

fn text(limit: usize) -> impl Strategy<Value = &'static str> {
    (vec(any::<char>(), 0..40), any::<bool>()).prop_map(move |(chars, is_longest)| {
        let mut text: String = chars.into_iter().collect();
        if is_longest {
            text.push_str(&"x".repeat(limit));
        }
        while text.len() > limit {
            text.pop();
        }
        &*text.leak()
    })
}

fn bytes(limit: usize) -> impl Strategy<Value = &'static [u8]> {
    prop_oneof![vec(any::<u8>(), 0..40), vec(any::<u8>(), limit)].prop_map(leak)
}

macro_rules! numbers {
    ($($strategy:ident $name:ident $repr:ty;)*) => {
        $(fn $strategy() -> impl Strategy<Value = $name> {
            any::<$repr>().prop_map($name)
        })*
    };
}

numbers! {
    node NodeId u16;
    cell CellId u16;
    term Term u64;
    index LogIndex u64;
    session SessionId u64;
    token FencingToken u64;
    revision Revision u64;
    owner Owner u64;
    request_id RequestId u64;
    round RoundId u64;
    cluster ClusterId [u8; 16];
    incarnation Incarnation [u8; 16];
    birth BirthId [u8; 16];
    nonce Nonce [u8; 16];
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared)]
}

fn reason() -> impl Strategy<Value = EndReason> {
    prop::sample::select(vec![
        EndReason::Released,
        EndReason::Cancelled,
        EndReason::Expired,
        EndReason::Closed,
        EndReason::Revoked,
        EndReason::MaxHold,
        EndReason::CellRestored,
    ])
}

fn status() -> impl Strategy<Value = Status> {
    prop::sample::select(Status::ALL)
}

fn hello() -> impl Strategy<Value = Hello<'static>> {
    let identity = (node(), node(), any::<u16>(), incarnation())
        .prop_map(|(node, to, shard, incarnation)| PeerIdentity { node, to, shard, incarnation });
    let role = (0..3, identity).prop_map(|(code, identity)| match code {
        0 => Role::Client,
        1 => Role::PeerControl(identity),
        _ => Role::PeerBulk(identity),
    });
    (any::<u16>(), any::<u16>(), cluster(), role, text(ADDRESS_BYTES_MAX), bytes(CREDENTIALS_BYTES_MAX))
        .prop_map(|(one, other, cluster, role, address, credentials)| Hello {
            protocol_min: one.min(other),
            protocol_max: one.max(other),
            cluster,
            role,
            peer_address: if role == Role::Client { "" } else { address },
            credentials,
        })
}

fn hello_reply() -> impl Strategy<Value = HelloReply<'static>> {
    let leader = (node(), text(ADDRESS_BYTES_MAX));
    let ttls = (any::<u32>(), any::<u32>());
    let who = (node(), cluster(), incarnation());
    (status(), text(DETAIL_BYTES_MAX), any::<u16>(), who, ttls, leader).prop_map(
        |(status, detail, protocol, (node, cluster, incarnation), ttls, leader)| HelloReply {
            status,
            detail,
            protocol,
            node,
            cluster,
            incarnation,
            ttl_ms_min: ttls.0,
            ttl_ms_max: ttls.1,
            leader: leader.0,
            leader_address: leader.1,
        },
    )
}

fn mutation() -> impl Strategy<Value = Mutation<'static>> {
    (session(), request_id(), rows(request_id(), REQUEST_WINDOW_MAX))
        .prop_map(|(session, request_id, seen)| Mutation { session, request_id, seen })
}

fn acquire() -> impl Strategy<Value = Acquire<'static>> {
    let times = (any::<u32>(), any::<u32>(), any::<u32>());
    let names = rows(text(NAME_BYTES_MAX), NAMES_PER_ACQUIRE_MAX);
    let how = (mode(), any::<bool>(), any::<u16>());
    (mutation(), owner(), how, times, names, bytes(DATA_BYTES_MAX)).prop_map(
        |(mutation, owner, how, times, names, data)| Acquire {
            mutation,
            owner,
            mode: how.0,
            is_reentrant: how.1,
            permits: how.2,
            wait_ms: times.0,
            lock_delay_ms: times.1,
            max_hold_ms: times.2,
            names,
            data,
        },
    )
}

fn request() -> impl Strategy<Value = Request<'static>> {
    let proof = (session(), nonce()).prop_map(|(session, nonce)| SessionProof { session, nonce });
    let name = || text(NAME_BYTES_MAX);
    prop_oneof![
        (text(CLIENT_ID_BYTES_MAX), any::<u32>(), nonce())
            .prop_map(|(client_id, ttl_ms, nonce)| Request::OpenSession { client_id, ttl_ms, nonce }),
        rows(proof, SESSIONS_PER_BATCH_MAX).prop_map(Request::AttachSessions),
        rows(session(), SESSIONS_PER_BATCH_MAX).prop_map(Request::KeepAlive),
        session().prop_map(|session| Request::CloseSession { session }),
        acquire().prop_map(Request::Acquire),
        (mutation(), request_id())
            .prop_map(|(mutation, acquire_id)| Request::Cancel { mutation, acquire_id }),
        (mutation(), request_id(), name(), token()).prop_map(|(mutation, acquire_id, name, token)| {
            Request::Release { mutation, acquire_id, name, token }
        }),
        (name(), token(), session()).prop_map(|(name, token, session)| Request::CheckToken {
            name,
            token,
            session
        }),
        name().prop_map(|name| Request::GetLock { name }),
        session().prop_map(|session| Request::GetSession { session }),
        Just(Request::Status),
        Just(Request::Members),
        member_change().prop_map(Request::ChangeMembers),
        any::<u16>().prop_map(|to| Request::TransferLeader { to: NodeId(to) }),
        Just(Request::Routes),
        (snapshot(), any::<u32>()).prop_map(|(snapshot, piece)| Request::SaveSnapshot { snapshot, piece }),
    ]
}

fn member_change() -> impl Strategy<Value = MemberChange<'static>> {
    let address = || text(ADDRESS_BYTES_MAX);
    prop_oneof![
        (node(), incarnation(), address(), address()).prop_map(
            |(node, incarnation, peer_address, client_address)| MemberChange::AddLearner {
                node,
                incarnation,
                peer_address,
                client_address,
            }
        ),
        node().prop_map(|node| MemberChange::Promote { node }),
        node().prop_map(|node| MemberChange::Remove { node }),
        (node(), address(), address()).prop_map(|(node, peer_address, client_address)| {
            MemberChange::SetAddresses { node, peer_address, client_address }
        }),
    ]
}

fn member_row() -> impl Strategy<Value = MemberRow<'static>> {
    let addresses = (text(ADDRESS_BYTES_MAX), text(ADDRESS_BYTES_MAX));
    (node(), incarnation(), any::<bool>(), addresses).prop_map(
        |(node, incarnation, is_voter, (peer_address, client_address))| MemberRow {
            node,
            incarnation,
            is_voter,
            peer_address,
            client_address,
        },
    )
}

/// A refusal, under any kind that is not a Hello's.
fn refused() -> impl Strategy<Value = (u16, Reply<'static>)> {
    let refusals: Vec<Status> =
        Status::ALL.iter().copied().filter(|status| status.retry() != Retry::Done).collect();
    let place = (node(), text(ADDRESS_BYTES_MAX));
    (prop::sample::select(refusals), any::<u32>(), place, text(DETAIL_BYTES_MAX), 2u16..0x8000).prop_map(
        |(status, retry_after_ms, (leader, leader_address), detail, asked)| {
            (asked, Reply::Refused(Refusal { status, retry_after_ms, leader, leader_address, detail }))
        },
    )
}

fn acquire_reply() -> impl Strategy<Value = (u16, Reply<'static>)> {
    let grant = (token(), token(), any::<u16>(), any::<u32>(), any::<u32>()).prop_map(
        |(token, fence, slot, hold_left_ms, holders)| Grant { token, fence, slot, hold_left_ms, holders },
    );
    prop_oneof![
        grant.prop_map(Reply::Granted),
        any::<u32>().prop_map(|position| Reply::Queued { position }),
        Just(Reply::TimedOut),
        Just(Reply::Cancelled),
        (request_id(), token()).prop_map(|(acquire_id, token)| Reply::AlreadyHeld { acquire_id, token }),
        (token(), reason()).prop_map(|(token, reason)| Reply::Lost { token, reason }),
    ]
    .prop_map(|reply| (kind::ACQUIRE, reply))
}

fn session_reply() -> impl Strategy<Value = (u16, Reply<'static>)> {
    let attached = (session(), status(), any::<u32>(), request_id()).prop_map(
        |(session, status, ttl_ms, next_request_id)| Attached { session, status, ttl_ms, next_request_id },
    );
    let kept = (session(), status(), any::<u32>()).prop_map(|(session, status, ttl_ms)| KeptAlive {
        session,
        status,
        ttl_ms,
    });
    prop_oneof![
        (session(), any::<u32>(), request_id()).prop_map(|(session, ttl_ms, next_request_id)| (
            kind::OPEN_SESSION,
            Reply::Opened { session, ttl_ms, next_request_id }
        )),
        rows(attached, SESSIONS_PER_BATCH_MAX)
            .prop_map(|rows| (kind::ATTACH_SESSIONS, Reply::Attached(rows))),
        rows(kept, SESSIONS_PER_BATCH_MAX).prop_map(|rows| (kind::KEEP_ALIVE, Reply::KeptAlive(rows))),
        (any::<u32>(), rows(text(NAME_BYTES_MAX), VIEW_ROWS_MAX)).prop_map(|(released_total, released)| (
            kind::CLOSE_SESSION,
            Reply::Closed { released_total, released }
        )),
        Just((kind::CANCEL, Reply::Done)),
        Just((kind::RELEASE, Reply::Done)),
        Just((kind::RELEASE, Reply::StaleToken)),
    ]
}

fn lock_view() -> impl Strategy<Value = LockView<'static>> {
    let ids = || (session(), owner(), request_id());
    let holder = (ids(), token(), token(), text(CLIENT_ID_BYTES_MAX), bytes(DATA_BYTES_MAX)).prop_map(
        |((session, owner, acquire_id), token, fence, client_id, data)| HolderView {
            session,
            owner,
            acquire_id,
            token,
            fence,
            client_id,
            data,
        },
    );
    let waiter = (ids(), mode(), any::<u32>(), text(CLIENT_ID_BYTES_MAX)).prop_map(
        |((session, owner, acquire_id), mode, position, client_id)| WaiterView {
            session,
            owner,
            acquire_id,
            mode,
            position,
            client_id,
        },
    );
    let totals = (any::<u32>(), any::<u32>());
    let lists = (rows(holder, VIEW_ROWS_MAX), rows(waiter, VIEW_ROWS_MAX));
    (revision(), any::<(bool, bool)>(), mode(), token(), totals, lists).prop_map(
        |(revision, (exists, is_quiet), mode, fence_floor, totals, (holders, waiters))| LockView {
            revision,
            exists,
            mode,
            fence_floor,
            is_quiet,
            holders_total: totals.0,
            waiters_total: totals.1,
            holders,
            waiters,
        },
    )
}

fn session_view() -> impl Strategy<Value = SessionView<'static>> {
    let claim = (request_id(), owner(), mode(), token(), token(), text(NAME_BYTES_MAX)).prop_map(
        |(acquire_id, owner, mode, token, fence, name)| ClaimView {
            acquire_id,
            owner,
            mode,
            token,
            fence,
            name,
        },
    );
    let claims = rows(claim, VIEW_ROWS_MAX);
    (revision(), any::<u32>(), text(CLIENT_ID_BYTES_MAX), any::<u32>(), claims).prop_map(
        |(revision, ttl_ms, client_id, claims_total, claims)| SessionView {
            revision,
            ttl_ms,
            client_id,
            claims_total,
            claims,
        },
    )
}

fn members_view() -> impl Strategy<Value = MembersView<'static>> {
    let member = (member_row(), any::<bool>(), index())
        .prop_map(|(member, is_heard, matched)| MemberProgress { member, is_heard, matched });
    let addresses = (text(ADDRESS_BYTES_MAX), text(ADDRESS_BYTES_MAX), text(ADDRESS_BYTES_MAX));
    let who = (node(), incarnation(), node(), addresses);
    (who, any::<(u16, u16)>(), index(), any::<bool>(), node(), rows(member, MEMBERS_MAX)).prop_map(
        |((node, incarnation, leader, addresses), (cells, shards), last, is_changing, node_max, members)| {
            MembersView {
                node,
                incarnation,
                cells,
                shards,
                leader,
                peer_address: addresses.0,
                client_address: addresses.1,
                leader_address: addresses.2,
                last,
                is_changing,
                node_max,
                members,
            }
        },
    )
}

fn status_view() -> impl Strategy<Value = StatusView<'static>> {
    let member = (node(), any::<bool>(), index(), text(ADDRESS_BYTES_MAX))
        .prop_map(|(node, is_heard, matched, address)| MemberView { node, is_heard, matched, address });
    let who = (node(), text(16), term(), node(), text(ADDRESS_BYTES_MAX));
    let indexes = (index(), index(), index());
    let counts = any::<(u64, u64, u64)>();
    (who, indexes, counts, any::<(bool, bool, u32)>(), rows(member, MEMBERS_MAX)).prop_map(
        |((node, role, term, leader, leader_address), indexes, counts, trouble, members)| StatusView {
            node,
            role,
            term,
            leader,
            leader_address,
            committed: indexes.0,
            applied: indexes.1,
            durable: indexes.2,
            sessions: counts.0,
            locks: counts.1,
            digest: counts.2,
            is_short_of_space: trouble.0,
            is_quiet: trouble.1,
            quiet_left_ms: trouble.2,
            members,
        },
    )
}

fn read_reply() -> impl Strategy<Value = (u16, Reply<'static>)> {
    let route = (text(NAME_BYTES_MAX), cell()).prop_map(|(namespace, cell)| Route { namespace, cell });
    prop_oneof![
        (any::<bool>(), token(), token()).prop_map(|(is_current, latest_token, fence_floor)| (
            kind::CHECK_TOKEN,
            Reply::Checked { is_current, latest_token, fence_floor }
        )),
        lock_view().prop_map(|view| (kind::GET_LOCK, Reply::Lock(view))),
        session_view().prop_map(|view| (kind::GET_SESSION, Reply::Session(view))),
        status_view().prop_map(|view| (kind::STATUS, Reply::Status(view))),
        members_view().prop_map(|view| (kind::MEMBERS, Reply::Members(view))),
        prop::sample::select(vec![kind::ADD_LEARNER, kind::PROMOTE, kind::REMOVE, kind::SET_ADDRESSES])
            .prop_map(|asked| (asked, Reply::Done)),
        (any::<u16>(), any::<u64>()).prop_map(|(leader, term)| (
            kind::TRANSFER_LEADER,
            Reply::Transferred { leader: NodeId(leader), term: Term(term) }
        )),
        rows(route, ROUTES_MAX).prop_map(|routes| (kind::ROUTES, Reply::Routes(routes))),
        (snapshot(), any::<u32>(), any::<bool>(), bytes(SNAPSHOT_PIECE_BYTES_MAX)).prop_map(
            |(snapshot, piece, is_last, bytes)| {
                let is_last = is_last || bytes.len() < SNAPSHOT_PIECE_BYTES_MAX;
                let piece = SavedPiece { snapshot, piece, is_last, bytes };
                (kind::SAVE_SNAPSHOT, Reply::SavedPiece(piece))
            }
        ),
        Just((kind::SAVE_SNAPSHOT, Reply::SnapshotGone)),
    ]
}

fn event() -> impl Strategy<Value = Event<'static>> {
    prop_oneof![
        (session(), request_id(), token(), reason(), text(NAME_BYTES_MAX)).prop_map(
            |(session, acquire_id, token, reason, name)| Event::HoldEnded {
                session,
                acquire_id,
                token,
                reason,
                name
            }
        ),
        (session(), reason()).prop_map(|(session, reason)| Event::SessionEnded { session, reason }),
        (node(), text(ADDRESS_BYTES_MAX))
            .prop_map(|(leader, leader_address)| Event::ShuttingDown { leader, leader_address }),
    ]
}

fn manifest() -> impl Strategy<Value = Manifest<'static>> {
    let members = prop::collection::btree_map(node(), incarnation(), 0..=MEMBERS_MAX);
    (birth(), members).prop_map(|(birth, members)| {
        let member = |(node, incarnation)| MemberIncarnation { node, incarnation };
        Manifest { birth, members: Rows::Slice(leak(members.into_iter().map(member).collect())) }
    })
}

fn append() -> impl Strategy<Value = Append<'static>> {
    let entry = (term(), bytes(ENTRY_BYTES_MAX)).prop_map(|(term, payload)| EntryRow { term, payload });
    let entries = vec(entry, 0..4).prop_map(|entries| Rows::Slice(leak(entries)));
    (term(), index(), term(), index(), entries).prop_map(
        |(term, prev_index, prev_term, committed, entries)| Append {
            term,
            prev_index,
            prev_term,
            committed,
            entries,
        },
    )
}

fn snapshot() -> impl Strategy<Value = SnapshotId> {
    (index(), term()).prop_map(|(index, term)| SnapshotId { index, term })
}

fn peer_message() -> impl Strategy<Value = PeerMessage<'static>> {
    let ballot = || prop::sample::select(vec![Ballot::Pre, Ballot::Real, Ballot::TakeOver]);
    let refusals = vec![
        PeerRefusal::OtherIncarnation,
        PeerRefusal::OtherMembers,
        PeerRefusal::OtherBirth,
        PeerRefusal::Unborn,
        PeerRefusal::NotMember,
        PeerRefusal::OtherOrigin,
    ];
    let outcome = prop_oneof![
        index().prop_map(|through| AppendOutcome::Durable { through }),
        (index(), index(), term()).prop_map(|(prev_index, hint, hint_term)| AppendOutcome::Conflict {
            prev_index,
            hint,
            hint_term
        }),
    ];
    let answer = prop_oneof![
        any::<u32>().prop_map(|piece| SnapshotAnswer::Wanted { piece }),
        Just(SnapshotAnswer::Installed),
        Just(SnapshotAnswer::Refused),
        Just(SnapshotAnswer::Missing),
    ];
    prop_oneof![
        (incarnation(), any::<u64>(), prop::option::of(birth()), any::<bool>()).prop_map(
            |(incarnation, members_hash, birth, is_born)| PeerMessage::CellHello(CellHello {
                incarnation,
                members_hash,
                birth,
                is_born
            })
        ),
        prop::sample::select(refusals).prop_map(|reason| PeerMessage::Refused { reason }),
        manifest().prop_map(PeerMessage::Manifest),
        birth().prop_map(|birth| PeerMessage::ManifestStored { birth }),
        birth().prop_map(|birth| PeerMessage::Born { birth }),
        (ballot(), term(), index(), term()).prop_map(|(ballot, term, last_index, last_term)| {
            PeerMessage::Vote { ballot, term, last_index, last_term }
        }),
        (ballot(), term(), any::<bool>()).prop_map(|(ballot, term, is_granted)| PeerMessage::VoteReply {
            ballot,
            term,
            is_granted
        }),
        (term(), any::<bool>()).prop_map(|(term, is_wished)| PeerMessage::TakeOver { term, is_wished }),
        append().prop_map(PeerMessage::Append),
        (term(), outcome).prop_map(|(term, outcome)| PeerMessage::AppendReply { term, outcome }),
        (term(), snapshot(), any::<u32>(), any::<bool>(), bytes(SNAPSHOT_PIECE_BYTES_MAX)).prop_map(
            |(term, snapshot, piece, is_last, bytes)| {
                let is_last = is_last || bytes.len() < SNAPSHOT_PIECE_BYTES_MAX;
                PeerMessage::SnapshotPiece(SnapshotPiece { term, snapshot, piece, is_last, bytes })
            }
        ),
        (term(), snapshot(), answer).prop_map(|(term, snapshot, answer)| {
            PeerMessage::SnapshotReply(SnapshotReply { term, snapshot, answer })
        }),
        (index(), any::<u64>()).prop_map(|(index, digest)| PeerMessage::Digest { index, digest }),
        (index(), any::<u64>()).prop_map(|(index, digest)| PeerMessage::DigestDisagrees { index, digest }),
    ]
}

fn beats() -> impl Strategy<Value = Rows<'static, Beat>> {
    let kind = prop::sample::select(vec![BeatKind::Ask, BeatKind::Answer, BeatKind::Deposed]);
    let beat = (cell(), kind, term(), round(), index(), any::<bool>()).prop_map(
        |(cell, kind, term, round, committed, is_short_of_space)| Beat {
            cell,
            kind,
            term,
            round,
            committed,
            is_short_of_space,
        },
    );
    vec(beat, 1..30).prop_map(|beats| Rows::Slice(leak(beats)))
}

/// Any message.
pub(super) fn message() -> impl Strategy<Value = Message<'static>> {
    let reply = |(asked, reply)| Message::Reply(asked, reply);
    prop_oneof![
        1 => hello().prop_map(Message::Hello),
        1 => hello_reply().prop_map(Message::HelloReply),
        6 => request().prop_map(Message::Request),
        1 => refused().prop_map(reply),
        2 => acquire_reply().prop_map(reply),
        3 => session_reply().prop_map(reply),
        3 => read_reply().prop_map(reply),
        1 => event().prop_map(Message::Event),
        5 => peer_message().prop_map(Message::Peer),
        1 => beats().prop_map(Message::Beats),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn whatever_is_encoded_decodes_to_itself(message in message()) {
        let bytes = message.encode();
        with_frame(&bytes, |frame| {
            let decoded = Message::decode(frame);
            prop_assert_eq!(&decoded, &Ok(message));
            // What was decoded is encoded to the same bytes, as a relay would do it.
            prop_assert_eq!(decoded.expect("it is the message").encode(), bytes.clone());
            Ok(())
        })?;
    }
}
