//! A log whose disk is damaged at random: recovery must refuse it or give what had been written.
//!
//! Invariant checked: no panic; what is recovered is a beginning of what was appended, unchanged; damage in one block
//! costs the last batch at most, and everything else that is missing was refused by name. A superblock is read as it was
//! written or not at all. Deliberately absent: which refusal it is; the log's own tests say that case by case.

use lockstep_wal::disk::{FileName, ShardId, Storage, StorageRead};
use lockstep_wal::layout::{BLOCK_BYTES, SEGMENT_BYTES_MIN};
use lockstep_wal::memory::{MemoryDisk, Random};
use lockstep_wal::{Log, RecordKind, Superblock, claim, format};
use lockstep_wire::{CellId, ClusterId, Incarnation, LogIndex, NodeId, Term};

use crate::random::Stream;

const SHARD: ShardId = ShardId(0);
/// Batches that are written before the damage, at most.
const BATCHES_MAX: u64 = 60;
/// Records in one batch, and bytes in one record, at most.
const RECORDS_MAX: u64 = 4;
const PAYLOAD_BYTES_MAX: u64 = 20_000;

type Appended = (RecordKind, Term, LogIndex, Vec<u8>);

fn written_superblock() -> Superblock {
    Superblock {
        cluster: ClusterId([1; 16]),
        node: NodeId(2),
        incarnation: Incarnation([3; 16]),
        shards: 1,
        segment_bytes: SEGMENT_BYTES_MIN,
    }
}

fn formatted() -> MemoryDisk {
    let mut disk = MemoryDisk::new();
    format(&mut disk, &written_superblock()).expect("an empty disk can be formatted");
    disk
}

/// Writes batches of entries; gives them, each with the number of its batch.
fn write(disk: &mut MemoryDisk, stream: &mut Stream) -> Vec<(u64, Appended)> {
    let superblock = claim(disk).expect("a formatted disk can be claimed");
    let (mut log, _) = Log::open(disk, &superblock, SHARD, 1, &mut |_, _| {}).expect("a new log opens");
    let mut random = Random::new(stream.next_u64());
    let mut appended = Vec::new();
    let mut index = LogIndex(0);
    for batch in 0..stream.between(1, BATCHES_MAX) {
        for _ in 0..stream.between(1, RECORDS_MAX) {
            index = index.next();
            let len = stream.below(PAYLOAD_BYTES_MAX);
            let byte = stream.next_u64().to_le_bytes()[0];
            let payload: Vec<u8> = (0..len).map(|at| byte ^ at.to_le_bytes()[0]).collect();
            log.append(CellId(0), RecordKind::Entry, Term(1), index, &payload).expect("within limits");
            appended.push((batch, (RecordKind::Entry, Term(1), index, payload)));
        }
        disk.settle(&mut log, &mut random);
    }
    appended
}

/// Damages one block of a segment; says which.
fn damage(disk: &mut MemoryDisk, stream: &mut Stream) -> (FileName, u64) {
    let files = disk.list().expect("a healthy disk lists its files");
    let segments: Vec<(FileName, u64)> =
        files.into_iter().filter(|(file, _)| matches!(file, FileName::Segment { .. })).collect();
    let (file, bytes) = segments[stream.place(segments.len())];
    let block_bytes = BLOCK_BYTES as u64;
    // The beginning of a segment is where something was written.
    let blocks = if stream.percent(50) { 8.min(bytes / block_bytes) } else { bytes / block_bytes };
    let offset = stream.below(blocks) * block_bytes;
    let mut block = vec![0; BLOCK_BYTES];
    disk.read(file, offset, &mut block).expect("the block is there");
    match stream.below(4) {
        0 => block.fill(0),
        1 => {
            let (other, other_bytes) = segments[stream.place(segments.len())];
            let from = stream.below(other_bytes / block_bytes) * block_bytes;
            disk.read(other, from, &mut block).expect("the block is there");
        }
        _ => {
            for _ in 0..stream.between(1, 3) {
                block[stream.place(BLOCK_BYTES)] ^= 1 << stream.below(8);
            }
        }
    }
    disk.write_durable(file, offset, &block).expect("a healthy disk writes");
    (file, offset)
}

/// See the module.
pub(super) fn recovery(stream: &mut Stream) -> Result<(), String> {
    let mut disk = formatted();
    let appended = write(&mut disk, stream);
    let mut damaged: Vec<(FileName, u64)> =
        (0..stream.one_of(&[1, 1, 1, 2, 5])).map(|_| damage(&mut disk, stream)).collect();
    damaged.sort_unstable();
    damaged.dedup();
    if stream.percent(10) {
        let files = disk.list().expect("a healthy disk lists its files");
        let (file, _) = files[stream.place(files.len())];
        disk.remove(file).expect("a healthy disk removes");
        damaged.push((file, 0));
    }
    let Ok(superblock) = claim(&mut disk) else { return Ok(()) };
    let mut recovered: Vec<Appended> = Vec::new();
    let opened = Log::open(&mut disk, &superblock, SHARD, 2, &mut |_, record| {
        recovered.push((record.kind, record.term, record.index, record.payload.to_vec()));
    });
    if opened.is_err() {
        return Ok(());
    }
    let is_beginning = recovered.iter().zip(&appended).all(|(seen, (_, written))| seen == written);
    if !is_beginning || recovered.len() > appended.len() {
        return Err(format!("after damage at {damaged:?} recovery gives what was never appended"));
    }
    let last_batch = appended.last().map_or(0, |(batch, _)| *batch);
    let missing = appended.get(recovered.len()).map_or(last_batch + 1, |(batch, _)| *batch);
    if damaged.len() == 1 && missing < last_batch {
        return Err(format!(
            "damage in one block, {damaged:?}, costs batches {missing} to {last_batch} without a word"
        ));
    }
    Ok(())
}

/// The superblock's file, bent.
pub(super) fn superblock(stream: &mut Stream) -> Result<(), String> {
    let mut disk = formatted();
    let files = disk.list().expect("a healthy disk lists its files");
    let (_, bytes) = files.into_iter().find(|(file, _)| *file == FileName::Superblock).expect("formatted");
    let mut content = vec![0; usize::try_from(bytes).expect("a superblock is short")];
    disk.read(FileName::Superblock, 0, &mut content).expect("it is there");
    for _ in 0..stream.between(1, 6) {
        let at = stream.place(content.len());
        match stream.below(3) {
            0 => content[at] ^= 1 << stream.below(8),
            1 => content[at..].fill(0),
            _ => {
                let len = stream.place(64).min(content.len() - at);
                let from = stream.place(content.len() - len);
                content.copy_within(from..from + len, at);
            }
        }
    }
    disk.write_durable(FileName::Superblock, 0, &content).expect("a healthy disk writes");
    match claim(&mut disk) {
        Ok(read) if read != written_superblock() => Err(format!("a bent superblock is read as {read:?}")),
        Ok(_) | Err(_) => Ok(()),
    }
}
