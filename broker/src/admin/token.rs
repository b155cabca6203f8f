//! Page tokens: opaque to clients, checked when they come back.
//!
//! A token says which list it belongs to and the last key that was looked at. Its checksum refuses
//! what was cut, made up, or taken to a list with another filter; it is no secret.

use mete_proto::admin::v1 as wire;
use prost::Message;

/// Where a list goes on: after this key, in this section of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct After {
    /// 0 = what is live, 1 = history.
    pub section: u8,
    /// The key of the last row that was looked at.
    pub key: String,
}

/// The longest key that is accepted back: two ids and some separators.
const LONGEST_KEY: usize = 600;

/// Makes the token.
#[must_use]
pub fn write(kind: wire::Kind, filter: &wire::Filter, after: &After) -> String {
    let mut bytes = vec![after.section];
    bytes.extend_from_slice(after.key.as_bytes());
    let sum = checksum(kind, filter, &bytes);
    let mut text = format!("{sum:08x}");
    for byte in bytes {
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Reads a token back; `None` if it is not one of this list.
#[must_use]
pub fn read(kind: wire::Kind, filter: &wire::Filter, token: &str) -> Option<After> {
    if token.len() > 8 + 2 * (LONGEST_KEY + 1) || !token.is_ascii() {
        return None;
    }
    let (sum, rest) = token.split_at_checked(8)?;
    let sum = u32::from_str_radix(sum, 16).ok()?;
    let bytes: Option<Vec<u8>> = rest
        .as_bytes()
        .chunks(2)
        .map(|pair| match pair {
            [_, _] => {
                let text = std::str::from_utf8(pair).ok()?;
                u8::from_str_radix(text, 16).ok()
            }
            _ => None,
        })
        .collect();
    let bytes = bytes?;
    if checksum(kind, filter, &bytes) != sum {
        return None;
    }
    let (section, key) = bytes.split_first()?;
    Some(After {
        section: *section,
        key: String::from_utf8(key.to_vec()).ok()?,
    })
}

fn checksum(kind: wire::Kind, filter: &wire::Filter, bytes: &[u8]) -> u32 {
    let sum = crc32c::crc32c(&i32::from(kind).to_le_bytes());
    let sum = crc32c::crc32c_append(sum, &filter.encode_to_vec());
    crc32c::crc32c_append(sum, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_only_to_its_own_list_and_unchanged() {
        let filter = wire::Filter {
            role: "ml".to_owned(),
            ..wire::Filter::default()
        };
        let after = After {
            section: 1,
            key: "größe/train#3".to_owned(),
        };
        let token = write(wire::Kind::Task, &filter, &after);
        assert_eq!(read(wire::Kind::Task, &filter, &token), Some(after));
        assert_eq!(read(wire::Kind::Node, &filter, &token), None);
        assert_eq!(
            read(wire::Kind::Task, &wire::Filter::default(), &token),
            None
        );
        for bad in [
            "",
            "x",
            "0000000",
            "zzzzzzzz00",
            &token[1..],
            &format!("{token}0"),
            "ä",
        ] {
            assert_eq!(read(wire::Kind::Task, &filter, bad), None, "{bad}");
        }
    }
}
