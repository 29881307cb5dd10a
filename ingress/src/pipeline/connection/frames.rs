//! Follows the HTTP/2 frames of what is written to a client (RFC 9113 §4.1).

/// Octets of a frame before its payload: its length in three, its type, its flags, its stream.
const HEAD_BYTES: usize = 9;
/// The type of frames that carry an answer's body.
const DATA: u8 = 0;

#[derive(Debug, Default)]
pub(super) struct WrittenFrames {
    head: Vec<u8>,
    payload_left: usize,
}

impl WrittenFrames {
    /// True if a part of an answer's body is among these octets, which follow those of the last call. Other frames may be answers to the
    /// client's pings and settings.
    pub(super) fn carry_data(&mut self, mut bytes: &[u8]) -> bool {
        let mut has_data = false;
        while !bytes.is_empty() {
            if self.payload_left == 0 {
                let (part, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES - self.head.len()));
                self.head.extend_from_slice(part);
                bytes = rest;
                let [high, middle, low, kind, _, _, _, _, _] = self.head[..] else { continue };
                has_data |= kind == DATA;
                self.payload_left = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            } else {
                has_data |= self.head.get(3) == Some(&DATA);
                let count = bytes.len().min(self.payload_left);
                bytes = &bytes[count..];
                self.payload_left -= count;
            }
            if self.payload_left == 0 {
                self.head.clear();
            }
        }
        has_data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_frames_of_a_body_are_data_however_they_are_cut() {
        let ping = [&[0, 0, 8, 6, 1, 0, 0, 0, 0][..], &[0; 8]].concat();
        let settings = vec![0, 0, 0, 4, 1, 0, 0, 0, 0];
        let data = [&[0, 1, 4, 0, 0, 0, 0, 0, 1][..], &[0; 260]].concat();
        let quiet = [&ping[..], &settings, &ping].concat();
        for size in [1, 3, 9, 17, 1_000] {
            let mut frames = WrittenFrames::default();
            assert!(quiet.chunks(size).all(|piece| !frames.carry_data(piece)), "{size}");
            assert!(data.chunks(size).filter(|piece| frames.carry_data(piece)).count() >= 260 / size, "{size}");
            assert!(quiet.chunks(size).all(|piece| !frames.carry_data(piece)), "{size}");
        }
    }
}
