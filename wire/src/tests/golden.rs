//! One example of every message, byte for byte, in `wire/golden.txt`.
//!
//! Invariant: a line of that file never changes within a feature level; whoever sees a difference has
//! changed the protocol. The file is for clients in other languages too.

use std::collections::BTreeSet;

use super::message::{CELL, CORRELATION, Message, every_kind, frame_of, with_frame};
use crate::frame::HEAD_BYTES;
use crate::hello::{Hello, HelloReply, PeerIdentity, Role};
use crate::peer::*;
use crate::reply::*;
use crate::request::{Acquire, Mode, Mutation, Request, SessionProof, kind};
use crate::*;

const SESSION: SessionId = SessionId(0x0001_0000_0000_002a);
const TOKEN: FencingToken = FencingToken(0x0001_0000_0000_0051);
const NONCE: Nonce = Nonce(*b"0123456789abcdef");
const CLUSTER: ClusterId = ClusterId(*b"a lockstep test ");
const INCARNATION: Incarnation = Incarnation(*b"incarnation no 1");
const BIRTH: BirthId = BirthId(*b"the only birth !");
const NAME: &str = "/ls/demo/job";
const ADDRESS: &str = "127.0.0.1:7400";
const MUTATION: Mutation<'static> =
    Mutation { session: SESSION, request_id: RequestId(7), seen: Rows::Slice(&[RequestId(5), RequestId(6)]) };
const ACQUIRE: Acquire<'static> = Acquire {
    mutation: MUTATION,
    owner: Owner(9),
    mode: Mode::Exclusive,
    is_reentrant: false,
    permits: 0,
    wait_ms: 30_000,
    lock_delay_ms: 0,
    max_hold_ms: 0,
    names: Rows::Slice(&[NAME]),
    data: b"host-1",
};

fn hellos() -> Vec<(&'static str, Message<'static>)> {
    let identity = PeerIdentity { node: NodeId(1), to: NodeId(2), shard: 1, incarnation: INCARNATION };
    let hello = |role| {
        let peer_address = if role == Role::Client { "" } else { "127.0.0.1:7500" };
        let (protocol_min, protocol_max) = (1, 1);
        Message::Hello(Hello {
            protocol_min,
            protocol_max,
            cluster: CLUSTER,
            role,
            peer_address,
            credentials: b"",
        })
    };
    let welcome = HelloReply {
        status: Status::Ok,
        detail: "",
        protocol: 1,
        node: NodeId(2),
        cluster: CLUSTER,
        incarnation: identity.incarnation,
        ttl_ms_min: 1_000,
        ttl_ms_max: 60_000,
        leader: NodeId(1),
        leader_address: ADDRESS,
    };
    vec![
        ("hello.client", hello(Role::Client)),
        ("hello.peer-control", hello(Role::PeerControl(identity))),
        ("hello.peer-bulk", hello(Role::PeerBulk(identity))),
        ("hello-reply.welcome", Message::HelloReply(welcome)),
        (
            "hello-reply.wrong-cell",
            Message::HelloReply(HelloReply {
                status: Status::WrongCell,
                detail: "cell 3 is not here",
                leader: NodeId(0),
                leader_address: "",
                ..welcome
            }),
        ),
    ]
}

fn requests() -> Vec<(&'static str, Message<'static>)> {
    let shared = Acquire {
        mode: Mode::Shared,
        is_reentrant: true,
        wait_ms: 0,
        names: Rows::Slice(&["/ls/demo/a", "/ls/demo/ä"]),
        permits: 4,
        lock_delay_ms: 5_000,
        max_hold_ms: 60_000,
        data: b"",
        ..ACQUIRE
    };
    let acquire_id = RequestId(6);
    [
        ("open-session", Request::OpenSession { client_id: "host-1/42", ttl_ms: 10_000, nonce: NONCE }),
        (
            "attach-sessions",
            Request::AttachSessions(Rows::Slice(&[SessionProof { session: SESSION, nonce: NONCE }])),
        ),
        ("keep-alive", Request::KeepAlive(Rows::Slice(&[SESSION, SessionId(43)]))),
        ("close-session", Request::CloseSession { session: SESSION }),
        ("acquire.exclusive", Request::Acquire(ACQUIRE)),
        ("acquire.shared-try", Request::Acquire(shared)),
        ("cancel", Request::Cancel { mutation: MUTATION, acquire_id }),
        ("release", Request::Release { mutation: MUTATION, acquire_id, name: NAME, token: TOKEN }),
        ("check-token", Request::CheckToken { name: NAME, token: TOKEN, session: SessionId(0) }),
        ("get-lock", Request::GetLock { name: NAME }),
        ("get-session", Request::GetSession { session: SESSION }),
        ("status", Request::Status),
        ("members", Request::Members),
        (
            "add-learner",
            Request::ChangeMembers(MemberChange::AddLearner {
                node: NodeId(6),
                incarnation: INCARNATION,
                peer_address: "127.0.0.1:7506",
                client_address: "127.0.0.1:7406",
            }),
        ),
        ("promote", Request::ChangeMembers(MemberChange::Promote { node: NodeId(6) })),
        ("remove", Request::ChangeMembers(MemberChange::Remove { node: NodeId(3) })),
        (
            "set-addresses",
            Request::ChangeMembers(MemberChange::SetAddresses {
                node: NodeId(2),
                peer_address: "127.0.0.1:7512",
                client_address: "127.0.0.1:7412",
            }),
        ),
        ("transfer-leader", Request::TransferLeader { to: NodeId(3) }),
        ("routes", Request::Routes),
        ("save-snapshot.begin", Request::SaveSnapshot { snapshot: SnapshotId::default(), piece: 0 }),
        ("save-snapshot.piece", Request::SaveSnapshot { snapshot: SAVED.snapshot, piece: 2 }),
    ]
    .map(|(name, request)| (name, Message::Request(request)))
    .to_vec()
}

const ATTACHED: &[Attached] = &[
    Attached { session: SESSION, status: Status::Ok, ttl_ms: 10_000, next_request_id: RequestId(8) },
    Attached { session: SessionId(43), status: Status::Denied, ttl_ms: 0, next_request_id: RequestId(0) },
];
const KEPT_ALIVE: &[KeptAlive] = &[
    KeptAlive { session: SESSION, status: Status::Ok, ttl_ms: 10_000 },
    KeptAlive { session: SessionId(43), status: Status::SessionExpired, ttl_ms: 0 },
];

fn session_replies() -> Vec<(&'static str, u16, Reply<'static>)> {
    let granted = Grant { token: TOKEN, fence: TOKEN, slot: 0, hold_left_ms: 0, holders: 1 };
    vec![
        (
            "open-session-reply",
            kind::OPEN_SESSION,
            Reply::Opened { session: SESSION, ttl_ms: 10_000, next_request_id: RequestId(1) },
        ),
        ("attach-sessions-reply", kind::ATTACH_SESSIONS, Reply::Attached(Rows::Slice(ATTACHED))),
        ("keep-alive-reply", kind::KEEP_ALIVE, Reply::KeptAlive(Rows::Slice(KEPT_ALIVE))),
        (
            "close-session-reply",
            kind::CLOSE_SESSION,
            Reply::Closed { released_total: 1, released: Rows::Slice(&[NAME]) },
        ),
        ("acquire-reply.granted", kind::ACQUIRE, Reply::Granted(granted)),
        ("acquire-reply.queued", kind::ACQUIRE, Reply::Queued { position: 2 }),
        ("acquire-reply.timed-out", kind::ACQUIRE, Reply::TimedOut),
        ("acquire-reply.cancelled", kind::ACQUIRE, Reply::Cancelled),
        (
            "acquire-reply.already-held",
            kind::ACQUIRE,
            Reply::AlreadyHeld { acquire_id: RequestId(6), token: TOKEN },
        ),
        ("acquire-reply.lost", kind::ACQUIRE, Reply::Lost { token: TOKEN, reason: EndReason::Expired }),
        ("cancel-reply", kind::CANCEL, Reply::Done),
        ("release-reply", kind::RELEASE, Reply::Done),
        ("release-reply.stale-token", kind::RELEASE, Reply::StaleToken),
        (
            "refusal.not-leader",
            kind::ACQUIRE,
            Reply::Refused(Refusal {
                leader: NodeId(1),
                leader_address: ADDRESS,
                ..Refusal::new(Status::NotLeader, "")
            }),
        ),
        (
            "refusal.overloaded",
            kind::OPEN_SESSION,
            Reply::Refused(Refusal { retry_after_ms: 250, ..Refusal::new(Status::Overloaded, "requests") }),
        ),
        ("refusal.unknown-call", 0x0177, Reply::Refused(Refusal::new(Status::Unsupported, "kind 0x0177"))),
    ]
}

const LOCK: LockView<'static> = LockView {
    revision: Revision(0x0001_0000_0000_0060),
    exists: true,
    mode: Mode::Exclusive,
    fence_floor: FencingToken(0),
    is_quiet: false,
    holders_total: 1,
    waiters_total: 1,
    holders: Rows::Slice(&[HolderView {
        session: SESSION,
        owner: Owner(9),
        acquire_id: RequestId(7),
        token: TOKEN,
        fence: TOKEN,
        client_id: "host-1/42",
        data: b"host-1",
    }]),
    waiters: Rows::Slice(&[WaiterView {
        session: SessionId(43),
        owner: Owner(1),
        acquire_id: RequestId(1),
        mode: Mode::Shared,
        position: 1,
        client_id: "host-2/7",
    }]),
};
const SESSION_VIEW: SessionView<'static> = SessionView {
    revision: Revision(0x0001_0000_0000_0060),
    ttl_ms: 10_000,
    client_id: "host-1/42",
    claims_total: 1,
    claims: Rows::Slice(&[ClaimView {
        acquire_id: RequestId(7),
        owner: Owner(9),
        mode: Mode::Exclusive,
        token: TOKEN,
        fence: TOKEN,
        name: NAME,
    }]),
};
const STATUS_VIEW: StatusView<'static> = StatusView {
    node: NodeId(1),
    role: "leader",
    term: Term(4),
    leader: NodeId(1),
    leader_address: ADDRESS,
    committed: LogIndex(96),
    applied: LogIndex(96),
    durable: LogIndex(97),
    sessions: 2,
    locks: 1,
    digest: 0x0102_0304_0506_0708,
    is_short_of_space: false,
    is_quiet: true,
    quiet_left_ms: 59_000,
    members: Rows::Slice(&[MemberView {
        node: NodeId(2),
        is_heard: true,
        matched: LogIndex(95),
        address: "127.0.0.1:7401",
    }]),
};

const SAVED: SavedPiece<'static> = SavedPiece {
    snapshot: SnapshotId { index: LogIndex(80), term: Term(3) },
    piece: 2,
    is_last: true,
    bytes: b"the end",
};

fn read_replies() -> Vec<(&'static str, u16, Reply<'static>)> {
    let absent = LockView {
        exists: false,
        fence_floor: FencingToken(0x0001_0000_0000_0060),
        is_quiet: true,
        holders_total: 0,
        waiters_total: 0,
        holders: Rows::Slice(&[]),
        waiters: Rows::Slice(&[]),
        ..LOCK
    };
    vec![
        (
            "check-token-reply",
            kind::CHECK_TOKEN,
            Reply::Checked { is_current: true, latest_token: TOKEN, fence_floor: FencingToken(0) },
        ),
        ("get-lock-reply.held", kind::GET_LOCK, Reply::Lock(LOCK)),
        ("get-lock-reply.absent", kind::GET_LOCK, Reply::Lock(absent)),
        ("get-session-reply", kind::GET_SESSION, Reply::Session(SESSION_VIEW)),
        ("status-reply", kind::STATUS, Reply::Status(STATUS_VIEW)),
        (
            "members-reply",
            kind::MEMBERS,
            Reply::Members(MembersView {
                node: NodeId(1),
                incarnation: INCARNATION,
                peer_address: "127.0.0.1:7500",
                client_address: ADDRESS,
                cells: 1,
                shards: 4,
                leader: NodeId(1),
                leader_address: ADDRESS,
                last: LogIndex(97),
                is_changing: false,
                node_max: NodeId(6),
                members: Rows::Slice(&[MemberProgress {
                    member: MemberRow {
                        node: NodeId(6),
                        incarnation: INCARNATION,
                        is_voter: false,
                        peer_address: "127.0.0.1:7506",
                        client_address: "127.0.0.1:7406",
                    },
                    is_heard: true,
                    matched: LogIndex(90),
                }]),
            }),
        ),
        ("add-learner-reply", kind::ADD_LEARNER, Reply::Done),
        ("promote-reply", kind::PROMOTE, Reply::Done),
        ("remove-reply", kind::REMOVE, Reply::Done),
        ("set-addresses-reply", kind::SET_ADDRESSES, Reply::Done),
        (
            "transfer-leader-reply",
            kind::TRANSFER_LEADER,
            Reply::Transferred { leader: NodeId(3), term: Term(9) },
        ),
        (
            "routes-reply",
            kind::ROUTES,
            Reply::Routes(Rows::Slice(&[
                Route { namespace: "", cell: CellId(0) },
                Route { namespace: "pay", cell: CellId(1) },
            ])),
        ),
        ("save-snapshot-reply.piece", kind::SAVE_SNAPSHOT, Reply::SavedPiece(SAVED)),
        ("save-snapshot-reply.gone", kind::SAVE_SNAPSHOT, Reply::SnapshotGone),
    ]
}

fn events() -> Vec<(&'static str, Message<'static>)> {
    [
        (
            "event.hold-ended",
            Event::HoldEnded {
                session: SESSION,
                acquire_id: RequestId(7),
                token: TOKEN,
                reason: EndReason::Revoked,
                name: NAME,
            },
        ),
        ("event.session-ended", Event::SessionEnded { session: SESSION, reason: EndReason::Expired }),
        ("event.shutting-down", Event::ShuttingDown { leader: NodeId(2), leader_address: ADDRESS }),
    ]
    .map(|(name, event)| (name, Message::Event(event)))
    .to_vec()
}

fn peer_messages() -> Vec<(&'static str, Message<'static>)> {
    let term = Term(4);
    let stranger = CellHello { incarnation: INCARNATION, members_hash: 0xabcd, birth: None, is_born: false };
    let append = Append {
        term,
        prev_index: LogIndex(90),
        prev_term: Term(3),
        committed: LogIndex(89),
        entries: Rows::Slice(&[
            EntryRow { term: Term(3), payload: b"first" },
            EntryRow { term: Term(4), payload: b"" },
        ]),
    };
    let manifest = Manifest {
        birth: BIRTH,
        members: Rows::Slice(&[
            MemberIncarnation { node: NodeId(1), incarnation: INCARNATION },
            MemberIncarnation { node: NodeId(2), incarnation: Incarnation([0xee; 16]) },
        ]),
    };
    let (last_index, last_term) = (LogIndex(97), term);
    let snapshot = SnapshotId { index: LogIndex(80), term: Term(3) };
    let piece = SnapshotPiece { term, snapshot, piece: 2, is_last: true, bytes: b"the end" };
    let reply = |answer| PeerMessage::SnapshotReply(SnapshotReply { term, snapshot, answer });
    let conflict =
        AppendOutcome::Conflict { prev_index: LogIndex(90), hint: LogIndex(80), hint_term: Term(2) };
    [
        ("peer.cell-hello.unborn", PeerMessage::CellHello(stranger)),
        (
            "peer.cell-hello.born",
            PeerMessage::CellHello(CellHello { birth: Some(BIRTH), is_born: true, ..stranger }),
        ),
        ("peer.refused", PeerMessage::Refused { reason: PeerRefusal::OtherIncarnation }),
        ("peer.manifest", PeerMessage::Manifest(manifest)),
        ("peer.manifest-stored", PeerMessage::ManifestStored { birth: BIRTH }),
        ("peer.born", PeerMessage::Born { birth: BIRTH }),
        ("peer.vote", PeerMessage::Vote { ballot: Ballot::Pre, term: Term(5), last_index, last_term }),
        ("peer.vote-reply", PeerMessage::VoteReply { ballot: Ballot::Real, term: Term(5), is_granted: true }),
        ("peer.take-over", PeerMessage::TakeOver { term, is_wished: true }),
        ("peer.append", PeerMessage::Append(append)),
        (
            "peer.append-reply.durable",
            PeerMessage::AppendReply { term, outcome: AppendOutcome::Durable { through: LogIndex(92) } },
        ),
        ("peer.append-reply.conflict", PeerMessage::AppendReply { term, outcome: conflict }),
        ("peer.snapshot-piece", PeerMessage::SnapshotPiece(piece)),
        ("peer.snapshot-reply.wanted", reply(SnapshotAnswer::Wanted { piece: 3 })),
        ("peer.snapshot-reply.installed", reply(SnapshotAnswer::Installed)),
        ("peer.snapshot-reply.refused", reply(SnapshotAnswer::Refused)),
        ("peer.snapshot-reply.missing", reply(SnapshotAnswer::Missing)),
        ("peer.digest", PeerMessage::Digest { index: LogIndex(4096), digest: 0xfeed }),
        ("peer.digest-disagrees", PeerMessage::DigestDisagrees { index: LogIndex(4096), digest: 0xbeef }),
    ]
    .map(|(name, message)| (name, Message::Peer(message)))
    .to_vec()
}

const BEATS: &[Beat] = &[
    Beat {
        cell: CellId(0),
        kind: BeatKind::Ask,
        term: Term(4),
        round: RoundId(1_000),
        committed: LogIndex(96),
        is_short_of_space: false,
    },
    Beat {
        cell: CellId(1),
        kind: BeatKind::Answer,
        term: Term(9),
        round: RoundId(3),
        committed: LogIndex(0),
        is_short_of_space: true,
    },
    Beat {
        cell: CellId(2),
        kind: BeatKind::Deposed,
        term: Term(6),
        round: RoundId(2),
        committed: LogIndex(0),
        is_short_of_space: false,
    },
];

/// Every example with its name.
pub(super) fn samples() -> Vec<(&'static str, Message<'static>)> {
    let replies = session_replies().into_iter().chain(read_replies());
    let mut all = hellos();
    all.extend(requests());
    all.extend(replies.map(|(name, asked, reply)| (name, Message::Reply(asked, reply))));
    all.extend(events());
    all.extend(peer_messages());
    all.push(("peer.beats", Message::Beats(Rows::Slice(BEATS))));
    all
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_message_is_these_bytes() {
    let mut text = format!(
        "# One frame a line: its name, its head, its body, in hex. docs/PROTOCOL.md says what each byte means.\n\
         # Cell {CELL} and correlation {:#018x} where a message has them.\n",
        CORRELATION.0
    );
    for (name, message) in samples() {
        let bytes = message.encode();
        let (head, body) = bytes.split_at(HEAD_BYTES);
        let line = format!("{name} {} {}", hex(head), hex(body));
        text.push_str(line.trim_end());
        text.push('\n');
    }
    expect_test::expect_file!["../../golden.txt"].assert_eq(&text);
}

#[test]
fn every_kind_has_an_example_that_decodes_to_itself() {
    let mut kinds = BTreeSet::new();
    for (name, message) in samples() {
        with_frame(&message.encode(), |frame| {
            kinds.insert(frame.head.kind);
            assert_eq!(Message::decode(frame), Ok(message), "{name}");
        });
    }
    for kind in every_kind() {
        assert!(kinds.contains(&kind), "kind {kind:#06x} has no example");
    }
}

#[test]
fn every_truncation_is_refused() {
    for (name, message) in samples() {
        with_frame(&message.encode(), |frame| {
            for count in 0..frame.body.len() {
                let cut = frame_of(frame.head.kind, &frame.body[..count]);
                let error = Message::decode(&cut).expect_err(name);
                assert!(matches!(error, DecodeError::Truncated(_)), "{name} cut to {count}: {error}");
            }
        });
    }
}

#[test]
fn trailing_bytes_are_refused() {
    for (name, message) in samples() {
        with_frame(&message.encode(), |frame| {
            let longer = [frame.body, &[0]].concat();
            let error = Message::decode(&frame_of(frame.head.kind, &longer)).expect_err(name);
            assert_eq!(error, DecodeError::Trailing { bytes: 1 }, "{name}");
        });
    }
}
