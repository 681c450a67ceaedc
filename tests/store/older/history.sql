PRAGMA application_id = 1296843080;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE fault (
            run INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,
            name TEXT NOT NULL,
            scenario TEXT NOT NULL,
            case_id TEXT NOT NULL,
            caught INTEGER NOT NULL,
            seconds REAL NOT NULL,
            note INTEGER REFERENCES note,
            oracles TEXT NOT NULL,
            blamed TEXT NOT NULL,
            accuracies TEXT,
            PRIMARY KEY (run, name, case_id)
        ) WITHOUT ROWID;
CREATE TABLE job (
            id INTEGER PRIMARY KEY,
            key TEXT NOT NULL UNIQUE,   -- case id, or id!fault
            scenario TEXT NOT NULL
        );
INSERT INTO "job" VALUES(1,'write-kv-kernel[kv=fp32,num_padded=0]','write-kv-kernel');
INSERT INTO "job" VALUES(2,'write-kv-kernel[kv=fp32,num_padded=3]','write-kv-kernel');
INSERT INTO "job" VALUES(3,'write-kv-kernel[kv=bf16,num_padded=0]','write-kv-kernel');
INSERT INTO "job" VALUES(4,'write-kv-kernel[kv=bf16,num_padded=3]','write-kv-kernel');
INSERT INTO "job" VALUES(5,'write-kv-kernel[kv=fp8_e4m3,num_padded=0]','write-kv-kernel');
INSERT INTO "job" VALUES(6,'write-kv-kernel[kv=fp8_e4m3,num_padded=3]','write-kv-kernel');
CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE result (
            job INTEGER NOT NULL REFERENCES job,
            run INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,
            verdict TEXT NOT NULL,
            seconds REAL NOT NULL,
            seed INTEGER NOT NULL,
            device TEXT NOT NULL,
            note INTEGER REFERENCES note,
            oracles TEXT NOT NULL,      -- names, comma-separated
            blamed TEXT NOT NULL,       -- sites, comma-separated
            accuracies TEXT,            -- JSON array, one number an epoch
            PRIMARY KEY (job, run)
        ) WITHOUT ROWID;
INSERT INTO "result" VALUES(1,1,'pass',1.31016076004016213119e-01,897824829,'cpu',NULL,'','',NULL);
INSERT INTO "result" VALUES(2,1,'pass',1.10525189957115799188e-02,619268249,'cpu',NULL,'','',NULL);
INSERT INTO "result" VALUES(3,1,'pass',2.09604330011643469333e-02,169375231,'cpu',NULL,'','',NULL);
INSERT INTO "result" VALUES(4,1,'pass',2.21031250039231963455e-02,904326991,'cpu',NULL,'','',NULL);
INSERT INTO "result" VALUES(5,1,'pass',1.46510070044314488768e-02,2036377189,'cpu',NULL,'','',NULL);
INSERT INTO "result" VALUES(6,1,'pass',2.21271820046240463852e-02,2029090064,'cpu',NULL,'','',NULL);
CREATE TABLE run (
            id INTEGER PRIMARY KEY,
            run_id TEXT NOT NULL UNIQUE,
            started TEXT NOT NULL,      -- UTC, ISO 8601: sorts as text
            seconds REAL NOT NULL,
            command TEXT NOT NULL,
            commit_id TEXT NOT NULL,
            branch TEXT NOT NULL,
            changes TEXT NOT NULL,      -- digest of what was not committed
            variant TEXT NOT NULL,      -- digest of options and versions
            folder TEXT NOT NULL,
            num_planned INTEGER NOT NULL
        );
INSERT INTO "run" VALUES(1,'20261122T183802Z-4831','2026-11-22T18:38:02+00:00',0.463,'mla-harness run write-kv-kernel --out /home/me/reports/runs --history /home/me/reports/runs/history.sqlite','','','','2b2b687e3b8d4b7c','/home/me/reports/runs/20261122T183802Z-4831',6);
CREATE INDEX run_by_time ON run (started, id);
CREATE INDEX job_by_scenario ON job (scenario);
CREATE INDEX result_by_run ON result (run, verdict);
COMMIT;
