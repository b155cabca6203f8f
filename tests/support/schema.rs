//! Holds JSON against the published schema: as much of JSON Schema as it uses, and stricter in one
//! thing: a field that is not described is a fault, unless the object says that it may have more.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Site;

/// The schema, as the program prints it.
#[derive(Debug)]
pub(crate) struct Schema(Value);

impl Schema {
    /// Asks the program for it.
    pub(crate) fn of(site: &Site) -> Self {
        let text = site.mete(&["help", "schema"]).done();
        Self(serde_json::from_str(&text).expect("the schema is JSON"))
    }

    fn definition(&self, name: &str) -> &Value {
        let found = &self.0["$defs"][name];
        assert!(found.is_object(), "the schema has no {name}");
        found
    }

    /// Every fault of something that should be a `name`.
    pub(crate) fn faults(&self, name: &str, value: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        self.look(self.definition(name), value, name, &mut faults);
        faults
    }

    /// The name of what the items of a kind are.
    pub(crate) fn item_of(&self, kind: &str) -> String {
        let items = &self.definition(kind)["properties"]["items"]["items"]["$ref"];
        let name = items.as_str().and_then(|text| text.rsplit('/').next());
        name.expect("a reference").to_owned()
    }

    /// Kinds of output in an envelope.
    pub(crate) fn kinds(&self) -> BTreeSet<String> {
        let all = self.0["$defs"].as_object().expect("definitions");
        let kinds = all
            .iter()
            .filter(|(_, schema)| schema["properties"]["items"]["type"] == "array");
        kinds.map(|(name, _)| name.clone()).collect()
    }

    fn look(&self, schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
        if let Some(name) = schema["$ref"].as_str() {
            let name = name.rsplit('/').next().unwrap_or_default();
            return self.look(self.definition(name), value, at, faults);
        }
        if let Some(wanted) = schema.get("const") {
            if wanted != value {
                faults.push(format!("{at} is {value}, not {wanted}"));
            }
            return;
        }
        let types: Vec<&str> = match schema["type"].as_array() {
            Some(all) => all.iter().filter_map(Value::as_str).collect(),
            None => schema["type"].as_str().into_iter().collect(),
        };
        let is = |name: &&str| match *name {
            "string" => value.is_string(),
            "integer" => value.is_u64() || value.is_i64(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "object" => value.is_object(),
            "array" => value.is_array(),
            "null" => value.is_null(),
            other => panic!("the schema has a type {other}"),
        };
        if !types.iter().any(is) {
            faults.push(format!("{at} is {value}, not of type {types:?}"));
            return;
        }
        if schema["format"] == "date-time"
            && let Some(text) = value.as_str()
            && !is_time(text)
        {
            faults.push(format!("{at} is no time: {text}"));
        }
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            self.look(&schema["items"], item, &format!("{at}[{index}]"), faults);
        }
        if let Some(object) = value.as_object() {
            self.fields(schema, object, at, faults);
        }
    }

    fn fields(
        &self,
        schema: &Value,
        object: &serde_json::Map<String, Value>,
        at: &str,
        faults: &mut Vec<String>,
    ) {
        for name in schema["required"].as_array().into_iter().flatten() {
            let name = name.as_str().unwrap_or_default();
            if !object.contains_key(name) {
                faults.push(format!("{at}.{name} is missing"));
            }
        }
        for (name, value) in object {
            let place = format!("{at}.{name}");
            if let Some(known) = schema["properties"].get(name) {
                self.look(known, value, &place, faults);
            } else if schema["additionalProperties"].is_object() {
                self.look(&schema["additionalProperties"], value, &place, faults);
            } else if schema["x-more"] != true {
                faults.push(format!("{place} is not described"));
            }
        }
    }
}

/// RFC 3339 in UTC.
fn is_time(text: &str) -> bool {
    let shape = |c: char| if c.is_ascii_digit() { '0' } else { c };
    let form: String = text.chars().map(shape).collect();
    form.starts_with("0000-00-00T00:00:00") && form.ends_with('Z')
}
