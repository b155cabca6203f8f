//! Looks up the user a task is to run as, in the host's own files.

use std::path::Path;

use super::TaskUser;

/// Why a user cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    /// Not in the file.
    #[error("this node has no user {user:?}; name one of its passwd file, or none")]
    Unknown {
        /// As asked for.
        user: String,
    },
    /// The agent cannot change to another user.
    #[error("the agent runs as user {own} and cannot start a task as {user:?}; run it as root")]
    NotRoot {
        /// As asked for.
        user: String,
        /// The agent's own user id.
        own: u32,
    },
}

/// The user of this name or number below `etc` (`/etc`). `None` for the agent's own.
///
/// # Errors
/// No such user, or this agent may not change to it.
pub fn lookup(etc: &Path, user: &str) -> Result<Option<TaskUser>, UserError> {
    if user.is_empty() {
        return Ok(None);
    }
    let passwd = std::fs::read_to_string(etc.join("passwd")).unwrap_or_default();
    let groups = std::fs::read_to_string(etc.join("group")).unwrap_or_default();
    let found = find(&passwd, &groups, user).ok_or_else(|| UserError::Unknown {
        user: user.to_owned(),
    })?;
    let own = rustix::process::geteuid().as_raw();
    if own == found.uid {
        return Ok(None);
    }
    if own != 0 {
        return Err(UserError::NotRoot {
            user: user.to_owned(),
            own,
        });
    }
    Ok(Some(found))
}

fn find(passwd: &str, groups: &str, user: &str) -> Option<TaskUser> {
    let (name, mut found) = passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, ..] = fields.as_slice() else {
            return None;
        };
        if *name != user && *uid != user {
            return None;
        }
        let user = TaskUser {
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            groups: Vec::new(),
            home: home.into(),
        };
        Some((*name, user))
    })?;
    found.groups = groups
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [_, _, gid, members, ..] = fields.as_slice() else {
                return None;
            };
            members
                .split(',')
                .any(|member| member == name)
                .then(|| gid.parse().ok())?
        })
        .collect();
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1001::/home/ann:/bin/sh\nbad\n";
    const GROUP: &str = "ann:x:1001:\nvideo:x:44:bob,ann\naudio:x:45:bob\n";

    #[test]
    fn a_user_is_found_by_name_and_by_number_with_all_its_groups() {
        for user in ["ann", "1000"] {
            let found = find(PASSWD, GROUP, user).expect("ann is there");
            assert_eq!((found.uid, found.gid, found.groups), (1000, 1001, vec![44]));
        }
        assert_eq!(find(PASSWD, GROUP, "eve"), None);
    }

    #[test]
    fn an_unknown_user_is_refused_by_name() {
        let etc = tempfile::tempdir().expect("a temporary directory");
        let error = lookup(etc.path(), "eve").expect_err("nobody is there");

        assert!(error.to_string().contains("\"eve\""), "{error}");
        assert_eq!(
            lookup(etc.path(), ""),
            Ok(None),
            "no name is the agent's own user"
        );
    }
}
