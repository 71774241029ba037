//! Files through the ring.

use std::path::{Path, PathBuf};

use lockstep_ring::{AlignedBuf, Completion, Durability, File, OpenMode, Ring, Token};

use crate::{directory, run_until, small_ring};

fn open(ring: &Ring, path: &Path, mode: OpenMode) -> File {
    ring.open(path, mode, Token(1)).expect("a path");
    run_until(ring, |ring, completion| match completion {
        Completion::Opened { result, .. } => Some(ring.adopt_file(result.expect("opens"))),
        other => panic!("unexpected {other:?}"),
    })
}

#[test]
fn durable_write_is_read_back() {
    let ring = small_ring();
    let directory = directory();
    let path: PathBuf = directory.path().join("file");
    let file = open(&ring, &path, OpenMode::DirectTruncated);
    let mut buffer = AlignedBuf::zeroed(12_288);
    buffer[..4096].fill(1);
    buffer[4096..8192].fill(2);
    ring.write(file, buffer, 4096..8192, 8192, Durability::Durable, Token(2));
    let buffer = run_until(&ring, |_, completion| match completion {
        Completion::Written { token: Token(2), buffer, result } => {
            assert_eq!(result.expect("written"), 4096);
            Some(buffer)
        }
        other => panic!("unexpected {other:?}"),
    });
    ring.read(file, buffer, 0..12_288, 0, Token(3));
    run_until(&ring, |_, completion| match completion {
        Completion::Read { token: Token(3), buffer, result } => {
            assert_eq!(result.expect("read"), 12_288);
            assert!(buffer[..8192].iter().all(|byte| *byte == 0));
            assert!(buffer[8192..].iter().all(|byte| *byte == 2));
            Some(())
        }
        other => panic!("unexpected {other:?}"),
    });
    ring.close_file(file, Token(4));
    run_until(&ring, |_, completion| {
        matches!(completion, Completion::Closed { token: Token(4) }).then_some(())
    });
}

#[test]
fn names_are_made_moved_synced_and_removed() {
    let ring = small_ring();
    let directory = directory();
    let (first, second) = (directory.path().join("first"), directory.path().join("second"));
    let file = open(&ring, &first, OpenMode::DirectTruncated);
    ring.allocate(file, 0, 1 << 20, Token(2));
    run_until(&ring, |_, completion| match completion {
        Completion::Allocated { result, .. } => Some(result.expect("allocated")),
        other => panic!("unexpected {other:?}"),
    });
    assert_eq!(std::fs::metadata(&first).expect("exists").len(), 1 << 20);
    ring.rename(&first, &second, Token(3)).expect("paths");
    run_until(&ring, |_, completion| match completion {
        Completion::Renamed { result, .. } => Some(result.expect("renamed")),
        other => panic!("unexpected {other:?}"),
    });
    let names = open(&ring, directory.path(), OpenMode::Directory);
    for file in [file, names] {
        ring.sync(file, Token(4));
        ring.sync_data(file, Token(4));
    }
    let mut syncs = 0;
    run_until(&ring, |_, completion| match completion {
        Completion::Synced { result, .. } => {
            result.expect("synced");
            syncs += 1;
            (syncs == 4).then_some(())
        }
        other => panic!("unexpected {other:?}"),
    });
    assert!(second.exists() && !first.exists());
    ring.unlink(&second, Token(5)).expect("a path");
    run_until(&ring, |_, completion| match completion {
        Completion::Unlinked { result, .. } => Some(result.expect("removed")),
        other => panic!("unexpected {other:?}"),
    });
    assert!(!second.exists());
}

#[test]
fn failed_operations_return_their_buffers_and_reasons() {
    let ring = small_ring();
    let directory = directory();
    ring.open(&directory.path().join("absent"), OpenMode::Direct, Token(1)).expect("a path");
    run_until(&ring, |_, completion| match completion {
        Completion::Opened { result, .. } => {
            assert_eq!(result.expect_err("absent").kind(), std::io::ErrorKind::NotFound);
            Some(())
        }
        other => panic!("unexpected {other:?}"),
    });
    let file = open(&ring, &directory.path().join("file"), OpenMode::DirectTruncated);
    // An odd length is what O_DIRECT refuses.
    ring.write(file, AlignedBuf::zeroed(4096), 0..100, 0, Durability::Durable, Token(2));
    run_until(&ring, |_, completion| match completion {
        Completion::Written { buffer, result, .. } => {
            assert_eq!(result.expect_err("unaligned").kind(), std::io::ErrorKind::InvalidInput);
            assert_eq!(buffer.len(), 4096);
            Some(())
        }
        other => panic!("unexpected {other:?}"),
    });
}

#[test]
fn dropping_the_ring_in_the_middle_of_writes_is_safe() {
    let directory = directory();
    for round in 0..20 {
        let ring = small_ring();
        let file = open(&ring, &directory.path().join("file"), OpenMode::DirectTruncated);
        for block in 0..20 {
            ring.write(
                file,
                AlignedBuf::zeroed(65_536),
                0..65_536,
                block * 65_536,
                Durability::Durable,
                Token(block),
            );
        }
        if round % 2 == 0 {
            ring.close_file(file, Token(99));
        }
        drop(ring);
    }
}
