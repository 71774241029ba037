//! What the members of a cell say to each other: birth, elections, entries, beats.
//!
//! Invariant: every message about the log carries its sender's term (Raft, section 5.1), and an answer
//! to a beat is separate from an acknowledgement of entries (ARCHITECTURE section 4.2). Kinds are numbered
//! once; the gaps are the places of membership.

use crate::cursor::{DecodeError, Decoded, Reader, Writer};
use crate::frame::{self, Frame, Head};
use crate::limit::{CELLS_MAX, ENTRY_BYTES_MAX, MEMBERS_MAX};
use crate::rows::{Row, Rows};
use crate::snapshot::{SnapshotPiece, SnapshotReply};
use crate::{BirthId, CellId, Correlation, Incarnation, LogIndex, NodeId, RoundId, Term};

/// The kinds of frames between members.
pub mod kind {
    /// [`super::CellHello`].
    pub const CELL_HELLO: u16 = 0x0201;
    /// [`super::PeerMessage::Refused`].
    pub const REFUSED: u16 = 0x0202;
    /// [`super::Manifest`].
    pub const MANIFEST: u16 = 0x0203;
    /// [`super::PeerMessage::ManifestStored`].
    pub const MANIFEST_STORED: u16 = 0x0204;
    /// [`super::PeerMessage::Born`].
    pub const BORN: u16 = 0x0205;
    /// [`super::PeerMessage::Vote`].
    pub const VOTE: u16 = 0x0210;
    /// [`super::PeerMessage::VoteReply`].
    pub const VOTE_REPLY: u16 = 0x0211;
    /// [`super::PeerMessage::TakeOver`].
    pub const TAKE_OVER: u16 = 0x0212;
    /// [`super::Append`].
    pub const APPEND: u16 = 0x0220;
    /// [`super::PeerMessage::AppendReply`].
    pub const APPEND_REPLY: u16 = 0x0221;
    /// [`super::SnapshotPiece`].
    pub const SNAPSHOT_PIECE: u16 = 0x0222;
    /// [`super::SnapshotReply`].
    pub const SNAPSHOT_REPLY: u16 = 0x0223;
    /// A list of [`super::Beat`]s of all cells between two nodes.
    pub const BEATS: u16 = 0x0230;
    /// [`super::PeerMessage::Digest`].
    pub const DIGEST: u16 = 0x0240;
    /// [`super::PeerMessage::DigestDisagrees`].
    pub const DIGEST_DISAGREES: u16 = 0x0241;
}

/// What a member says of itself about one cell when a link comes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellHello {
    /// The life of its data directory.
    pub incarnation: Incarnation,
    /// A hash of the ids in its list of members, so that two different configurations are noticed.
    pub members_hash: u64,
    /// The birth that it has stored a manifest of, if any.
    pub birth: Option<BirthId>,
    /// Whether it knows that every member has confirmed that manifest.
    pub is_born: bool,
}

/// A member and the life of its data directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberIncarnation {
    /// The member.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
}

impl Row<'_> for MemberIncarnation {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u16(self.node.0);
        out.put(&self.incarnation.0);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<MemberIncarnation> {
        Ok(MemberIncarnation {
            node: NodeId(reader.u16("node")?),
            incarnation: Incarnation(reader.random("incarnation")?),
        })
    }
}

/// Who the members of a cell are at its birth (ARCHITECTURE section 4.1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Manifest<'a> {
    /// The birth.
    pub birth: BirthId,
    /// Every member, by id, each once.
    pub members: Rows<'a, MemberIncarnation>,
}

impl<'a> Manifest<'a> {
    /// Appends the body; the log's record of it has the same layout.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.put(&self.birth.0);
        self.members.put(out);
    }

    /// Reads the body.
    pub fn decode(body: &'a [u8]) -> Decoded<Manifest<'a>> {
        let mut reader = Reader::new(body);
        let birth = BirthId(reader.random("birth")?);
        let members: Rows<'a, MemberIncarnation> = Rows::read(&mut reader, MEMBERS_MAX, "members")?;
        reader.finish()?;
        // Members in another order, or one of them twice, would be a second encoding of the same birth.
        if !members.iter().zip(members.iter().skip(1)).all(|(one, next)| one.node < next.node) {
            return Err(DecodeError::Invalid("members"));
        }
        Ok(Manifest { birth, members })
    }
}

/// Why a member will not talk to another about a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PeerRefusal {
    /// The cell knows this id under another incarnation: it was wiped and formatted again.
    OtherIncarnation = 1,
    /// Their lists of members differ.
    OtherMembers = 2,
    /// They were born in different births.
    OtherBirth = 3,
    /// A member was wiped before the birth was complete; nothing was ever acknowledged.
    Unborn = 4,
    /// The id is not in the cell.
    NotMember = 5,
    /// The id was in the cell, and was removed for ever.
    Removed = 6,
    /// Before the birth: they begin with different states.
    OtherOrigin = 7,
}

impl PeerRefusal {
    fn read(reader: &mut Reader<'_>) -> Decoded<PeerRefusal> {
        Ok(match reader.u8("reason")? {
            1 => PeerRefusal::OtherIncarnation,
            2 => PeerRefusal::OtherMembers,
            3 => PeerRefusal::OtherBirth,
            4 => PeerRefusal::Unborn,
            5 => PeerRefusal::NotMember,
            6 => PeerRefusal::Removed,
            7 => PeerRefusal::OtherOrigin,
            _ => return Err(DecodeError::Invalid("reason")),
        })
    }
}

/// Which vote is asked for (Raft, section 9.6 of the dissertation for the pre-vote).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Ballot {
    /// Would you vote for me? Changes nothing.
    Pre = 0,
    /// Vote for me.
    Real = 1,
    /// Vote for me although you hear the leader: it told me to take over.
    TakeOver = 2,
}

impl Ballot {
    fn read(reader: &mut Reader<'_>) -> Decoded<Ballot> {
        Ok(match reader.u8("ballot")? {
            0 => Ballot::Pre,
            1 => Ballot::Real,
            2 => Ballot::TakeOver,
            _ => return Err(DecodeError::Invalid("ballot")),
        })
    }
}

/// One entry of an append message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRow<'a> {
    /// The term of the leader that made it.
    pub term: Term,
    /// The command.
    pub payload: &'a [u8],
}

impl<'a> Row<'a> for EntryRow<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.term.0);
        out.put_bytes(self.payload);
    }
    fn read(reader: &mut Reader<'a>) -> Decoded<EntryRow<'a>> {
        Ok(EntryRow {
            term: Term(reader.u64("entry.term")?),
            payload: reader.bytes(ENTRY_BYTES_MAX, "entry.payload")?,
        })
    }
}

/// Entries for a follower (Raft, figure 2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Append<'a> {
    /// The leader's term.
    pub term: Term,
    /// The index in front of the first entry.
    pub prev_index: LogIndex,
    /// The term of the entry there.
    pub prev_term: Term,
    /// How far the leader knows the log to be committed.
    pub committed: LogIndex,
    /// The entries from `prev_index + 1` on; none when only the match is probed.
    pub entries: Rows<'a, EntryRow<'a>>,
}

/// What became of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendOutcome {
    /// The follower's disk has the leader's log through here.
    Durable {
        /// Its index.
        through: LogIndex,
    },
    /// The follower's log does not match at `prev_index`.
    Conflict {
        /// The `prev_index` that did not match.
        prev_index: LogIndex,
        /// Where the leader should try next: the follower has nothing that conflicts below it that it
        /// knows of (Raft, section 5.3, fast backtracking).
        hint: LogIndex,
        /// The term of the follower's entry at `hint`; 0 when it has none there.
        hint_term: Term,
    },
}

/// Whether a beat asks or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BeatKind {
    /// From the leader: I lead; confirm this round.
    Ask = 0,
    /// From a follower: I know no newer term; the round is confirmed by me.
    Answer = 1,
    /// From a member that knows a newer term, which is the beat's.
    Deposed = 2,
}

/// A leader's heartbeat and read round in one, or the answer to it (ARCHITECTURE section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// The cell it is about.
    pub cell: CellId,
    /// Whether it asks or answers.
    pub kind: BeatKind,
    /// The sender's term.
    pub term: Term,
    /// The newest round that had begun when it was asked.
    pub round: RoundId,
    /// How far the log is known to be committed *and* to match at the receiver; 0 in an answer.
    pub committed: LogIndex,
    /// In an answer: the follower's disk has no room for the next segment of its log. Otherwise false.
    pub is_short_of_space: bool,
}

impl Row<'_> for Beat {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u16(self.cell.0);
        out.put_u8(self.kind as u8);
        out.put_u64(self.term.0);
        out.put_u64(self.round.0);
        out.put_u64(self.committed.0);
        out.put_bool(self.is_short_of_space);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Beat> {
        Ok(Beat {
            cell: CellId(reader.u16("cell")?),
            kind: match reader.u8("beat")? {
                0 => BeatKind::Ask,
                1 => BeatKind::Answer,
                2 => BeatKind::Deposed,
                _ => return Err(DecodeError::Invalid("beat")),
            },
            term: Term(reader.u64("term")?),
            round: RoundId(reader.u64("round")?),
            committed: LogIndex(reader.u64("committed")?),
            is_short_of_space: reader.bool("is_short_of_space")?,
        })
    }
}

/// Beats in one frame: some turns of a loop give a cell more than one for the same node.
pub const BEATS_PER_FRAME_MAX: usize = CELLS_MAX * 4;

/// Appends the frame that carries the beats of all cells between two nodes; more than one frame when
/// they do not fit, and none without a beat.
pub fn encode_beats(beats: &[Beat], out: &mut Vec<u8>) {
    let head = Head { kind: kind::BEATS, cell: CellId(0), correlation: Correlation(0) };
    for beats in beats.chunks(BEATS_PER_FRAME_MAX) {
        frame::encode(out, head, |out| Rows::Slice(beats).put(out));
    }
}

/// Reads the beats out of their frame.
pub fn decode_beats<'a>(frame: &Frame<'a>) -> Decoded<Rows<'a, Beat>> {
    if frame.head.kind != kind::BEATS {
        return Err(DecodeError::UnknownKind(frame.head.kind));
    }
    let mut reader = Reader::new(frame.body);
    let beats = Rows::read(&mut reader, BEATS_PER_FRAME_MAX, "beats")?;
    reader.finish()?;
    Ok(beats)
}

/// What one member says to another about one cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PeerMessage<'a> {
    /// Who I am in this cell.
    CellHello(CellHello),
    /// I will not talk to you about this cell.
    Refused {
        /// Why.
        reason: PeerRefusal,
    },
    /// Store this: who the members are.
    Manifest(Manifest<'a>),
    /// My disk has the manifest.
    ManifestStored {
        /// Of which birth.
        birth: BirthId,
    },
    /// Every member has confirmed the manifest: you may vote from now on.
    Born {
        /// Of which birth.
        birth: BirthId,
    },
    /// Asks for a vote, or whether it would be given.
    Vote {
        /// Which of them.
        ballot: Ballot,
        /// The candidate's term; for a pre-vote the term that it would campaign in.
        term: Term,
        /// The index of its last entry.
        last_index: LogIndex,
        /// The term of its last entry.
        last_term: Term,
    },
    /// The answer.
    VoteReply {
        /// To which ballot.
        ballot: Ballot,
        /// The term that was voted in; when refused, the voter's own.
        term: Term,
        /// Whether the vote is given.
        is_granted: bool,
    },
    /// From a leader that wishes to go: campaign at once.
    TakeOver {
        /// The leader's term.
        term: Term,
        /// An operator wished it: it is to stay there.
        is_wished: bool,
    },
    /// Entries.
    Append(Append<'a>),
    /// What became of them.
    AppendReply {
        /// The follower's term.
        term: Term,
        /// What became of them.
        outcome: AppendOutcome,
    },
    /// A piece of a snapshot, for a follower whose entries are gone.
    SnapshotPiece(SnapshotPiece<'a>),
    /// What became of it.
    SnapshotReply(SnapshotReply),
    /// The digest of my state, for the leader to compare.
    Digest {
        /// After this entry.
        index: LogIndex,
        /// The digest.
        digest: u64,
    },
    /// From the leader: a majority has another digest than you; stop.
    DigestDisagrees {
        /// After this entry.
        index: LogIndex,
        /// The majority's.
        digest: u64,
    },
}

impl<'a> PeerMessage<'a> {
    /// The kind in the frame's head.
    pub fn kind(&self) -> u16 {
        match self {
            PeerMessage::CellHello(_) => kind::CELL_HELLO,
            PeerMessage::Refused { .. } => kind::REFUSED,
            PeerMessage::Manifest(_) => kind::MANIFEST,
            PeerMessage::ManifestStored { .. } => kind::MANIFEST_STORED,
            PeerMessage::Born { .. } => kind::BORN,
            PeerMessage::Vote { .. } => kind::VOTE,
            PeerMessage::VoteReply { .. } => kind::VOTE_REPLY,
            PeerMessage::TakeOver { .. } => kind::TAKE_OVER,
            PeerMessage::Append(_) => kind::APPEND,
            PeerMessage::AppendReply { .. } => kind::APPEND_REPLY,
            PeerMessage::SnapshotPiece(_) => kind::SNAPSHOT_PIECE,
            PeerMessage::SnapshotReply(_) => kind::SNAPSHOT_REPLY,
            PeerMessage::Digest { .. } => kind::DIGEST,
            PeerMessage::DigestDisagrees { .. } => kind::DIGEST_DISAGREES,
        }
    }

    /// Appends the whole frame.
    pub fn encode(&self, cell: CellId, out: &mut Vec<u8>) {
        let head = Head { kind: self.kind(), cell, correlation: Correlation(0) };
        frame::encode(out, head, |out| self.put(out));
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            PeerMessage::CellHello(hello) => {
                out.put(&hello.incarnation.0);
                out.put_u64(hello.members_hash);
                out.put_bool(hello.birth.is_some());
                out.put(&hello.birth.unwrap_or_default().0);
                out.put_bool(hello.is_born);
            }
            PeerMessage::Refused { reason } => out.put_u8(*reason as u8),
            PeerMessage::Manifest(manifest) => manifest.put(out),
            PeerMessage::ManifestStored { birth } | PeerMessage::Born { birth } => out.put(&birth.0),
            PeerMessage::Vote { ballot, term, last_index, last_term } => {
                out.put_u8(*ballot as u8);
                out.put_u64(term.0);
                out.put_u64(last_index.0);
                out.put_u64(last_term.0);
            }
            PeerMessage::VoteReply { ballot, term, is_granted } => {
                out.put_u8(*ballot as u8);
                out.put_u64(term.0);
                out.put_bool(*is_granted);
            }
            PeerMessage::TakeOver { term, is_wished } => {
                out.put_u64(term.0);
                out.put_bool(*is_wished);
            }
            PeerMessage::Append(append) => {
                out.put_u64(append.term.0);
                out.put_u64(append.prev_index.0);
                out.put_u64(append.prev_term.0);
                out.put_u64(append.committed.0);
                append.entries.put(out);
            }
            PeerMessage::AppendReply { term, outcome } => {
                out.put_u64(term.0);
                match outcome {
                    AppendOutcome::Durable { through } => {
                        out.put_u8(0);
                        out.put_u64(through.0);
                    }
                    AppendOutcome::Conflict { prev_index, hint, hint_term } => {
                        out.put_u8(1);
                        out.put_u64(prev_index.0);
                        out.put_u64(hint.0);
                        out.put_u64(hint_term.0);
                    }
                }
            }
            PeerMessage::SnapshotPiece(piece) => piece.put(out),
            PeerMessage::SnapshotReply(reply) => reply.put(out),
            PeerMessage::Digest { index, digest } | PeerMessage::DigestDisagrees { index, digest } => {
                out.put_u64(index.0);
                out.put_u64(*digest);
            }
        }
    }

    /// Reads a message out of its frame. Beats have a frame of their own: [`decode_beats`].
    pub fn decode(frame: &Frame<'a>) -> Decoded<PeerMessage<'a>> {
        let mut reader = Reader::new(frame.body);
        let message = match frame.head.kind {
            kind::CELL_HELLO => PeerMessage::CellHello(CellHello::read(&mut reader)?),
            kind::REFUSED => PeerMessage::Refused { reason: PeerRefusal::read(&mut reader)? },
            kind::MANIFEST => PeerMessage::Manifest(Manifest::decode(reader.take_rest())?),
            kind::MANIFEST_STORED => PeerMessage::ManifestStored { birth: BirthId(reader.random("birth")?) },
            kind::BORN => PeerMessage::Born { birth: BirthId(reader.random("birth")?) },
            kind::VOTE => PeerMessage::Vote {
                ballot: Ballot::read(&mut reader)?,
                term: Term(reader.u64("term")?),
                last_index: LogIndex(reader.u64("last_index")?),
                last_term: Term(reader.u64("last_term")?),
            },
            kind::VOTE_REPLY => PeerMessage::VoteReply {
                ballot: Ballot::read(&mut reader)?,
                term: Term(reader.u64("term")?),
                is_granted: reader.bool("is_granted")?,
            },
            kind::TAKE_OVER => PeerMessage::TakeOver {
                term: Term(reader.u64("term")?),
                is_wished: reader.bool("is_wished")?,
            },
            kind::APPEND => PeerMessage::Append(Append {
                term: Term(reader.u64("term")?),
                prev_index: LogIndex(reader.u64("prev_index")?),
                prev_term: Term(reader.u64("prev_term")?),
                committed: LogIndex(reader.u64("committed")?),
                entries: Rows::read(&mut reader, usize::from(u16::MAX), "entries")?,
            }),
            kind::APPEND_REPLY => PeerMessage::AppendReply {
                term: Term(reader.u64("term")?),
                outcome: AppendOutcome::read(&mut reader)?,
            },
            kind::SNAPSHOT_PIECE => PeerMessage::SnapshotPiece(SnapshotPiece::read(&mut reader)?),
            kind::SNAPSHOT_REPLY => PeerMessage::SnapshotReply(SnapshotReply::read(&mut reader)?),
            kind::DIGEST => {
                PeerMessage::Digest { index: LogIndex(reader.u64("index")?), digest: reader.u64("digest")? }
            }
            kind::DIGEST_DISAGREES => PeerMessage::DigestDisagrees {
                index: LogIndex(reader.u64("index")?),
                digest: reader.u64("digest")?,
            },
            unknown => return Err(DecodeError::UnknownKind(unknown)),
        };
        reader.finish()?;
        Ok(message)
    }
}

impl CellHello {
    fn read(reader: &mut Reader<'_>) -> Decoded<CellHello> {
        let incarnation = Incarnation(reader.random("incarnation")?);
        let members_hash = reader.u64("members_hash")?;
        let has_birth = reader.bool("has_birth")?;
        let birth = BirthId(reader.random("birth")?);
        let is_born = reader.bool("is_born")?;
        // Without a birth its field is zero: one value has one encoding.
        if !has_birth && birth != BirthId::default() {
            return Err(DecodeError::Invalid("birth"));
        }
        Ok(CellHello { incarnation, members_hash, birth: has_birth.then_some(birth), is_born })
    }
}

impl AppendOutcome {
    fn read(reader: &mut Reader<'_>) -> Decoded<AppendOutcome> {
        Ok(match reader.u8("outcome")? {
            0 => AppendOutcome::Durable { through: LogIndex(reader.u64("through")?) },
            1 => AppendOutcome::Conflict {
                prev_index: LogIndex(reader.u64("prev_index")?),
                hint: LogIndex(reader.u64("hint")?),
                hint_term: Term(reader.u64("hint_term")?),
            },
            _ => return Err(DecodeError::Invalid("outcome")),
        })
    }
}
