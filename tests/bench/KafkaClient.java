import java.io.FileOutputStream;
import java.time.Duration;
import java.util.Collections;
import java.util.Iterator;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's Java clients for benchmarks, told what to do by lines on standard input, so that a round does not measure how a JVM starts.
 * "send TOPIC RECORDS BYTES" sends random records until all are acknowledged; "receive TOPIC RECORDS FILE" reads them from the beginning
 * and writes them to a file, with a sync for every 4 MB and at the end. Each is answered by "done".
 */
public class KafkaClient {
    static final int SYNC_BYTES = 4000000;

    public static void main(String[] words) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", words[0]);
        for (int at = 1; at < words.length; at++) {
            int cut = words[at].indexOf('=');
            settings.put(words[at].substring(0, cut), words[at].substring(cut + 1));
        }
        java.io.BufferedReader lines = new java.io.BufferedReader(new java.io.InputStreamReader(System.in));
        System.out.println("ready");
        String line = lines.readLine();
        while (line != null) {
            String[] told = line.split(" ");
            if (told[0].equals("send")) {
                send(settings, told[1], Integer.parseInt(told[2]), Integer.parseInt(told[3]));
            } else {
                receive(settings, told[1], Integer.parseInt(told[2]), told[3]);
            }
            System.out.println("done");
            line = lines.readLine();
        }
    }

    static void send(Properties settings, String topic, int records, int bytes) throws Exception {
        byte[] value = new byte[bytes];
        java.util.Random random = new java.util.Random(1);
        KafkaProducer producer = new KafkaProducer(settings, new ByteArraySerializer(), new ByteArraySerializer());
        for (int at = 0; at < records; at++) {
            if (at % 1000 == 0) {
                random.nextBytes(value);
                value = (byte[]) value.clone();
            }
            producer.send(new ProducerRecord(topic, value));
        }
        producer.close();
    }

    static void receive(Properties settings, String topic, int records, String path) throws Exception {
        KafkaConsumer consumer = new KafkaConsumer(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        TopicPartition partition = new TopicPartition(topic, 0);
        consumer.assign(Collections.singletonList(partition));
        consumer.seekToBeginning(Collections.singletonList(partition));
        FileOutputStream file = new FileOutputStream(path);
        java.io.BufferedOutputStream out = new java.io.BufferedOutputStream(file, 1 << 20);
        int seen = 0;
        int unsynced = 0;
        while (seen < records) {
            ConsumerRecords polled = consumer.poll(Duration.ofMillis(100));
            Iterator each = polled.iterator();
            while (each.hasNext()) {
                byte[] value = (byte[]) ((ConsumerRecord) each.next()).value();
                out.write(value);
                seen++;
                unsynced += value.length;
            }
            if (unsynced >= SYNC_BYTES) {
                out.flush();
                file.getFD().sync();
                unsynced = 0;
            }
        }
        out.flush();
        file.getFD().sync();
        out.close();
        consumer.close();
    }
}
