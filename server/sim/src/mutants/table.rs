//! Every variant, where it is looked for, and in how many seeds at most it must be seen.
//!
//! Invariant: each variant has one row; one of the lock table has another one, where the reference model does not help the
//! judge of the rule that it breaks. Drawn plans are preferred; whatever needs its moment has a plan or a play of
//! its own. Deliberately absent: what each of them does and which point of the contract it breaks; its own page says.

use lockstep_wire::mutant::Mutant;

use crate::oracle::{line, once, orphan};

use super::{Row, Subject, Trial, plays, shapes};
use crate::world::defect::Defect;

const fn part(mutant: Mutant, trial: Trial, seeds: u64) -> Row {
    Row { subject: Subject::Part(mutant), trial, seeds, rule: None }
}

const fn driver(defect: Defect, trial: Trial, seeds: u64) -> Row {
    Row { subject: Subject::Driver(defect), trial, seeds, rule: None }
}

const fn unaided(mutant: Mutant, rule: &'static str, trial: Trial, seeds: u64) -> Row {
    Row { subject: Subject::Part(mutant), trial, seeds, rule: Some(rule) }
}

/// See the module.
pub const TABLE: &[Row] = &[
    part(Mutant::AcknowledgeBeforeDurable, Trial::Drawn, 300),
    part(Mutant::VoteBeforeDurable, Trial::Play(plays::crash_between_vote_and_leader), 100),
    part(Mutant::KeepAliveWithoutRound, Trial::Run(shapes::two_leaders), 300),
    part(Mutant::ReadWithoutRound, Trial::Drawn, 300),
    part(Mutant::ServeBeforeBlank, Trial::Drawn, 600),
    part(Mutant::ExpireWithoutDrain, Trial::Play(plays::beats_behind_a_late_turn), 60),
    part(Mutant::PromoteInsideRemovals, Trial::Commands(300), 300),
    part(Mutant::SharedBargesPast, Trial::Drawn, 300),
    part(Mutant::WindowLostAtFailover, Trial::Drawn, 300),
    part(Mutant::CancelForgetsGrant, Trial::Drawn, 300),
    part(Mutant::TokenFromCounter, Trial::Drawn, 300),
    part(Mutant::TruncateAtRot, Trial::Drawn, 300),
    part(Mutant::GoOnAfterFailedSync, Trial::Run(shapes::failing_disks), 60),
    part(Mutant::CommitOlderTerm, Trial::Play(plays::older_term_on_a_majority), 100),
    part(Mutant::SkipDirectorySync, Trial::Drawn, 300),
    part(Mutant::DeadlineFromReceipt, Trial::Drawn, 300),
    part(Mutant::ReplayIgnoresHold, Trial::Commands(300), 300),
    part(Mutant::ReleaseRunsTwice, Trial::Drawn, 300),
    part(Mutant::AcknowledgementSurvivesTruncation, Trial::Play(plays::crash_after_truncation), 100),
    part(Mutant::WipedNodeVotes, Trial::Drawn, 300),
    part(Mutant::AcknowledgeDoomed, Trial::Run(shapes::slow_endings), 300),
    part(Mutant::AcknowledgeSilent, Trial::Run(shapes::silence_and_failover), 300),
    part(Mutant::SilenceAddedTwice, Trial::Run(shapes::silence_and_failover), 300),
    part(Mutant::DeposedSaysNotExecuted, Trial::Drawn, 300),
    part(Mutant::StallSaysNotExecuted, Trial::Drawn, 300),
    part(Mutant::AttachWithoutNonce, Trial::Drawn, 300),
    part(Mutant::SilenceNeverLogged, Trial::Run(shapes::silent_for_good), 300),
    part(Mutant::SuccessorIgnoresSilence, Trial::Run(shapes::silent_for_good), 300),
    part(Mutant::DeadlineDoubledAtFailover, Trial::Drawn, 300),
    part(Mutant::WaitCutShort, Trial::Drawn, 60),
    part(Mutant::WaitForgottenAtFailover, Trial::Run(shapes::silence_and_failover), 300),
    part(Mutant::ReleaseRefusedForSpace, Trial::Drawn, 60),
    part(Mutant::WindowLostInSnapshot, Trial::Drawn, 60),
    part(Mutant::SnapshotNamedAhead, Trial::Drawn, 60),
    part(Mutant::SnapshotMarkedUnsynced, Trial::Drawn, 300),
    part(Mutant::InstallKeepsTable, Trial::Drawn, 300),
    part(Mutant::InstallWithoutTruncation, Trial::Drawn, 300),
    part(Mutant::RecycleUncoveredEntries, Trial::Drawn, 60),
    part(Mutant::CampaignWithoutState, Trial::Play(plays::election_beside_a_lost_snapshot), 60),
    part(Mutant::RestoreWithoutQuietTime, Trial::Play(plays::restore_beside_a_holder), 60),
    part(Mutant::MembershipKeptAtInstall, Trial::Play(plays::install_over_an_uncommitted_list), 20),
    part(Mutant::NodeIdReused, Trial::Run(shapes::changing_members), 60),
    part(Mutant::LearnerCounts, Trial::Run(shapes::changing_members), 60),
    part(Mutant::FarewellBeforeCommit, Trial::Run(shapes::changing_members), 60),
    part(Mutant::ManifestBeforeBirth, Trial::Run(shapes::early_spares), 60),
    driver(Defect::DurableBeforeWritten, Trial::Run(shapes::lone_member_without_power), 60),
    driver(Defect::DrainWithoutInput, Trial::Run(shapes::beats_at_the_last_moment), 300),
    driver(Defect::ClockBeforeArrivals, Trial::Run(shapes::late_turns), 300),
    driver(Defect::HardStateForgotten, Trial::Play(plays::crash_between_vote_and_leader), 20),
    driver(Defect::DirectorySyncSkipped, Trial::Run(shapes::many_segments), 60),
    driver(Defect::ClientClockStands, Trial::Run(shapes::suspended_clients), 60),
];

/// The variants of the lock table once more, by the rule that must object to each by itself.
pub const UNAIDED: &[Row] = &[
    unaided(Mutant::PromoteInsideRemovals, line::TOKENS, Trial::Commands(300), 300),
    unaided(Mutant::SharedBargesPast, line::FIFO, Trial::Drawn, 300),
    unaided(Mutant::WindowLostAtFailover, once::RULE, Trial::Drawn, 300),
    unaided(Mutant::CancelForgetsGrant, orphan::RULE, Trial::Drawn, 300),
    unaided(Mutant::TokenFromCounter, line::TOKENS, Trial::Drawn, 300),
    unaided(Mutant::ReplayIgnoresHold, once::RULE, Trial::Drawn, 300),
    unaided(Mutant::ReleaseRunsTwice, once::RULE, Trial::Drawn, 300),
];
